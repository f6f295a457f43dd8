// The template language: what each construct writes (expected values are those of Jinja 3 with trim_blocks and
// lstrip_blocks, and of Python's json.dumps), what is refused and at which line, and that nothing hostile does harm.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <ctime>

#include "support/errors.h"
#include "text/chat_template.h"

using namespace glyd;
using text::ChatInput;
using text::ChatTemplate;

namespace {

ChatInput input() {
  ChatInput in;
  in.messages = io::parse_ordered_json(
      R"([{"role": "user", "content": "Hi"},
          {"role": "assistant", "content": "héllo 👍 wörld", "n": 1, "x": [1, 2, 3], "d": {"b": 1, "a": [true, null, 1.5]}},
          {"role": "tool", "content": "  sp \n"}])",
      "test");
  return in;
}

std::string run(const std::string& source) { return ChatTemplate::parse(source, "t").render(input()).text; }

// The message of the error that parsing or rendering ends in.
std::string refused(const std::string& source) {
  std::string made;
  const std::string said = test::error_of(Code::Model, [&] { made = run(source); });
  return said.empty() ? "accepted: " + made : said;
}

struct Pair {
  const char *source, *expected;
};

void check_all(std::initializer_list<Pair> pairs) {
  for (const Pair& p : pairs) {
    INFO(p.source);
    CHECK(run(p.source) == p.expected);
  }
}

void check_refused(std::initializer_list<Pair> pairs) {
  for (const Pair& p : pairs) {
    INFO(p.source);
    CHECK_THAT(refused(p.source), Catch::Contains(p.expected));
  }
}

std::string repeat(const std::string& s, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += s;
  return out;
}

}  // namespace

TEST_CASE("jinja: white space around tags", "[text][jinja]") {
  check_all({{"a\n", "a"},
             {"a\n\n", "a\n"},
             {"a\r\nb\rc", "a\nb\nc"},
             {"  {% if true %}\n  x\n  {% endif %}\n", "  x\n"},
             {"{{ 1 }}\n{{ 2 }}\n", "1\n2"},
             {"{% if true %}\n\n a{% endif %}", "\n a"},
             {"x {%- if true %} y {% endif -%} z", "x y z"},
             {"a\n   {{ 1 }}", "a\n   1"},
             {"a  \n {{- 1 -}} \n b", "a1b"},
             {"{# c #}\n\na", "\na"},
             {"{#- c -#}  \n a", "a"},
             {"a {#- c #} b", "a b"},
             {"{#-#}a{##}", "a"},
             {"a {# c #}\n  {% set q=1 %}\n b", "a  b"},
             {"{%+ if true +%}\n a{% endif %}", "\n a"},
             {"  {%+ set a=1 %}x", "  x"},
             {"x\n \xC2\xA0 {% set a=1 %}y", "x\ny"},
             {"{{ 1 }}   {% set b=2 %}\n x", "1    x"},
             {"{% set a=1 %}   {% set b=2 %}\n x", "    x"},
             {"{ { }} %} #} {a}", "{ { }} %} #} {a}"}});
}

TEST_CASE("jinja: literals", "[text][jinja]") {
  check_all({{R"({{ "a\tb\\n\'\"\x41\u00e9\q\101" }})", "a\tb\\n'\"A\xC3\xA9\\qA"},
             {"{{ 'multi\nline' }}{{ 'go\\\non' }}{{ 'a' \"b\" }}", "multi\nlinegoonab"},
             {"{{ '%}' }}{{ '}}' }}{{ '{{' }}{{ '{#' }}", "%}}}{{{#"},
             {"{{ true }}{{ True }}{{ false }}{{ none }}{{ None }}", "TrueTrueFalseNoneNone"},
             {"{{ {'a': {'b': 1}}.a.b }}{{ {'a': [1, {'c': 2}],}['a'][1].c }}", "12"},
             {"{{ (1, 2)[1] }}{{ () | length }}{{ (1,) | length }}{{ [1, 2,][0] }}", "2011"},
             {"{{ {'a': 1, 'a': 2} | tojson }}", "{\"a\": 2}"},
             {"{{ 1.0 }} {{ 0.1 }} {{ 1e-7 }} {{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 123456789.125 }}",
              "1.0 0.1 1e-07 1e+16 1000000000000000.0 0.0001 1e-05 123456789.125"},
             {"{{ 12345678901234567.0 }} {{ -0.0 }} {{ 2.5e-5 }} {{ 1.5e300 * 1e300 }}",
              "1.2345678901234568e+16 -0.0 2.5e-05 inf"}});
}

TEST_CASE("jinja: operators", "[text][jinja]") {
  // A test or filter binds tighter than an operator: 2 + (3 is number) is 2 + 1.
  check_all(
      {{"{{ 1 + 2 * 3 - 4 // 3 % 2 }} {{ 7 / 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7.5 // 2 }} {{ -7.5 % 2 "
        "}}",
        "6 3.5 -4 2 -2 3.0 0.5"},
       {"{{ 'a' + 'b' ~ 1 ~ none ~ 1.0 }}", "ab1None1.0"},
       {"{{ 'ab' * 2 }}{{ 2 * 'x' }}{{ 'a' * -1 }}{{ ([1, 2] * 2 + [3]) | join }}", "ababxx12123"},
       {"{{ 99999999999 * 99999999999 }}", "9999999999800000000001"},
       {"{{ 1 < 2 < 3 }}{{ 1 < 2 > 5 }}{{ 1 == 1.0 }}{{ true == 1 }}{{ 'a' < 'b' }}{{ 2 <= 1 }}{{ 1 >= 1 }}",
        "TrueFalseTrueTrueTrueFalseTrue"},
       {"{{ [1, 2] == [1, 2] }}{{ {'a': 1} == {'a': 1.0} }}{{ 'a' != 'b' }}{{ none == false }}{{ x == y }}",
        "TrueTrueTrueFalseTrue"},
       {"{{ not 1 == 2 }}{{ not true and false }}{{ true or false and false }}{{ 'x' and 'y' }}{{ '' or 'z' }}{{ 0 or "
        "none }}",
        "TrueFalseTrueyzNone"},
       {"{{ 'b' in 'abc' }}{{ 'x' not in ['a'] }}{{ 'a' in {'a': 1} }}{{ 1 in [1.0] }}{{ 'q' in nothing }}",
        "TrueTrueTrueTrueFalse"},
       {"{{ 'yes' if 1 else 'no' }}{{ 'yes' if 0 }}{{ 'a' if 0 else 'b' if 0 else 'c' }}", "yesc"},
       {"{{ 2 + 3 is number }}{{ 'ab' ~ 'cd' | upper }}{{ -1 | string }}{{ messages | length - 1 }}", "3abCD-12"}});
}

TEST_CASE("jinja: indices and slices count characters", "[text][jinja]") {
  check_all(
      {{"{{ messages[1].content[0] }}{{ messages[1].content[-1] }}{{ messages[1].content[1] }}", "hdé"},
       {"{{ messages[1].content[6] }}{{ messages[1].content[99] }}{{ messages[1].content | length }}", "👍13"},
       {"{{ messages[1].content[::-1] }}|{{ messages[1].content[1:4] }}", "dlröw 👍 olléh|éll"},
       {"{{ messages[1].content[:-3] }}|{{ messages[1].content[-3:] }}", "héllo 👍 wö|rld"},
       {"{{ 'abcdef'[::2] }}|{{ 'abcdef'[5:2] }}|{{ 'abcdef'[5:2:-1] }}|{{ 'abcdef'[-100:100] }}|{{ 'abc'[::-2] }}",
        "ace||fed|abcdef|ca"},
       {"{{ [1, 2, 3, 4, 5][3:0:-2] | tojson }}{{ [1, 2, 3][::-1] | tojson }}{{ [1, 2][5:] | tojson }}",
        "[4, 2][3, 2, 1][]"},
       {"{{ [1, 2, 3][none:none] | tojson }}{{ 'abc'[::99999999999999] }}{{ 'abc'[::-99999999999999] }}",
        "[1, 2, 3]ac"},
       {"{{ messages[0]['role'] }}{{ messages[0].nope }}{{ messages[-1].role }}{{ messages[7] }}{{ 'a'.nope }}{{ "
        "none.x }}",
        "usertool"}});
}

TEST_CASE("jinja: tags", "[text][jinja]") {
  check_all(
      {{"{% if false %}a{% elif 1 == 1 %}b{% else %}c{% endif %}{% if x %}t{% else %}f{% endif %}", "bf"},
       {"{% if 0.0 %}t{% else %}f{% endif %}{% if {} %}t{% else %}f{% endif %}{% if [0] %}t{% endif %}", "fft"},
       {"{% set a = 1 %}{% for i in [1, 2] %}{% set a = a + 1 %}{{ a }}{% endfor %}{{ a }}",
        "221"},                                                  // a loop has its own
       {"{% if true %}{% set a = 2 %}{% endif %}{{ a }}", "2"},  // an if has not
       {"{% set ns = namespace(a=1, b='x') %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ "
        "ns.b }}{{ ns.c }}",
        "4x"},
       {"{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns['b'] }}", "12"},
       {"{% set z %}block {{ 1 + 1 }}{% endset %}{{ z }}|{{ z | length }}", "block 2|7"},
       {"{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ "
        "loop.revindex }}"
        "{{ loop.revindex0 }}{{ loop.previtem.role if loop.previtem is defined }}{{ loop.nextitem.role if not "
        "loop.last }};{% endfor %}",
        "10TrueFalse332assistant;21FalseFalse321usertool;32FalseTrue310assistant;"},
       {"{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }},{% endfor %}{% for (a, b) in [[1, 2], [3, 4]] %}{{ "
        "a + b }}{% endfor %}",
        "a=1,b=2,37"},
       {"{% for k in {'x': 1} %}{{ k }}{% endfor %}{% for c in 'hé' %}[{{ c }}]{% endfor %}{% for a in nothing %}q{% "
        "else %}none{% endfor %}",
        "x[h][é]none"},
       {"{% for i in range(10) if i % 2 == 0 %}{{ i }}{% if loop.last %}!{% endif %}{% endfor %}", "02468!"},
       {"{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i "
        "}}{% endfor %}",
        "0134"},
       {"{% for i in [1] %}{% break %}{% else %}e{% endfor %}", "e"},  // as Jinja does: no iteration was completed
       {"{% for i in [1, 2] %}{% for j in [3, 4] %}{{ i }}{{ j }}{{ loop.index }} {% endfor %}{{ loop.index }};{% "
        "endfor %}",
        "131 142 1;231 242 2;"},
       {"{% macro f(a, b=2, c='z') %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(a=9, c='q') }}{{ "
        "f() }}{{ f('x') ~ 1 }}",
        "<12z><13z><92q><2z><x2z>1"},
       {"{% macro g(n) %}{% if n > 0 %}{{ n }}{{ g(n - 1) }}{% endif %}{% endmacro %}{{ g(5) }}", "54321"},
       {"{% set y = 5 %}{% macro h() %}{{ y }}{% set y = 6 %}{{ y }}{% endmacro %}{{ h() }}{{ y }}", "565"},
       {"{% macro k(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ k(3) }}", "33"},
       {"{% generation %}gen{{ 1 }}{% endgeneration %}", "gen1"},
       {"a{# {{ x.y }} {% frob %} #}b", "ab"}});
}

TEST_CASE("jinja: filters", "[text][jinja]") {
  check_all(
      {{"{{ '  a b ' | trim }}|{{ 'xax' | trim('x') }}|{{ 'aBc É' | lower }}|{{ 'é' | upper }}|{{ 'hELLO wORLD' | "
        "capitalize }}",
        "a b|a|abc é|É|Hello world"},
       {"{{ [1, 2] | first }}{{ [1, 2] | last }}{{ [] | first }}{{ 'abc' | first }}{{ 'hé' | last }}{{ {'k': 1} | "
        "first }}",
        "12aék"},
       {"{{ x | default('d') }}|{{ '' | default('d') }}|{{ '' | default('d', true) }}|{{ none | default('d') }}|{{ x | "
        "d }}",
        "d||d|None|"},
       {"{{ [1, 2, 'x'] | join('-') }}|{{ [] | join }}|{{ messages | join(',', attribute='role') }}|{{ 'abc' | "
        "join('.') }}",
        "1-2-x||user,assistant,tool|a.b.c"},
       {"{{ [1, 2, 3] | select('odd') | list | tojson }}{{ [1, 2, 3] | reject('equalto', 2) | list | tojson }}{{ [0, "
        "1, none] | select | join }}",
        "[1, 3][1, 3]1"},
       {"{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | selectattr('n') | list | "
        "length }}"
        "{{ messages | rejectattr('role', 'in', ['user', 'tool']) | map(attribute='role') | join }}",
        "11assistant"},
       {"{{ ['a ', ' b'] | map('trim') | join }}{{ [{'a': {'b': 3}}] | map(attribute='a.b') | join }}{{ ['a'] | "
        "map('replace', 'a', 'c') | join }}",
        "ab3c"},
       {"{% if [] | select %}true{% endif %}{{ ([] | select | list | length) }}", "true0"},  // a generator, as in Jinja
       {"{{ [1, 2] | length }}{{ {'a': 1} | length }}{{ 'é' | count }}{{ x | length }}", "2110"},
       {"{{ '3' | int + 1 }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ 3.9 | int }} {{ '3.9' | int }} {{ ' 4 ' | int }} {{ "
        "true | int }}",
        "4 0 5 3 3 4 1"},
       {"{{ 1 | string + 'a' }}{{ none | string }}{{ 'a' | safe }}{{ 'abcabc' | replace('b', 'X', 1) }}",
        "1aNoneaaXcabc"},
       {"{% for k, v in {'a': 1} | items %}{{ k }}{{ v }}{% endfor %}{{ nothing | items | list | length }}{{ 'ab' | "
        "list | tojson }}",
        "a10[\"a\", \"b\"]"}});
}

TEST_CASE("jinja: tojson is Python's json.dumps", "[text][jinja]") {
  check_all(
      {{"{{ messages[1] | tojson }}",
        "{\"role\": \"assistant\", \"content\": \"héllo 👍 wörld\", \"n\": 1, \"x\": [1, 2, 3], \"d\": {\"b\": 1, "
        "\"a\": [true, null, 1.5]}}"},
       {"{{ messages[1].d | tojson(indent=2) }}", "{\n  \"b\": 1,\n  \"a\": [\n    true,\n    null,\n    1.5\n  ]\n}"},
       {"{{ [1] | tojson(indent=0) }}{{ {} | tojson(indent=4) }}{{ [] | tojson }}", "[\n1\n]{}[]"},
       {"{{ '\"\\\\/\\x7f\\u2028\\x01\\t\\b\\f\\n\\r<>&' | tojson }}",
        "\"\\\"\\\\/\x7f\xE2\x80\xA8\\u0001\\t\\b\\f\\n\\r<>&\""},
       {"{{ 'é👍' | tojson(ensure_ascii=true) }}{{ 'é' | tojson(ensure_ascii=False) }}",
        "\"\\u00e9\\ud83d\\udc4d\"\"é\""},
       {"{{ [1.0, 0.1, 1e-7, 1e16, -3, 1e300 * 1e300] | tojson }}", "[1.0, 0.1, 1e-07, 1e+16, -3, Infinity]"}});
  ChatInput in = input();
  in.extra = io::parse_ordered_json(R"({"n": [18446744073709551615, -9223372036854775808, 1e3]})", "test");
  CHECK(ChatTemplate::parse("{{ n | tojson }}", "t").render(in).text ==
        "[18446744073709551615, -9223372036854775808, 1000.0]");
}

TEST_CASE("jinja: tests", "[text][jinja]") {
  check_all(
      {{"{{ x is defined }}{{ x is undefined }}{{ x is not defined }}{{ not x is defined }}{{ none is none }}{{ x is "
        "none }}",
        "FalseTrueTrueTrueTrueFalse"},
       {"{{ 'a' is string }}{{ {} is mapping }}{{ [] is mapping }}{{ [] is iterable }}{{ 'a' is iterable }}{{ 1 is "
        "iterable }}",
        "TrueTrueFalseTrueTrueFalse"},
       {"{{ [] is sequence }}{{ 1 is sequence }}{{ true is true }}{{ 1 is true }}{{ false is false }}{{ 0 is false }}",
        "TrueFalseTrueFalseTrueFalse"},
       {"{{ 1 is number }}{{ 1.0 is number }}{{ 1 is integer }}{{ true is integer }}{{ 1.0 is float }}{{ true is "
        "boolean }}",
        "TrueTrueTrueFalseTrueTrue"},
       {"{{ 3 is odd }}{{ 3 is even }}{{ 1 is eq 1 }}{{ 1 is ne(2) }}{{ 1 is lt 2 }}{{ 3 is gt 2 }}{{ 2 is ge 2 }}{{ 2 "
        "is le 1 }}{{ 1 is in [1] }}",
        "TrueFalseTrueTrueTrueTrueTrueFalseTrue"},
       {"{{ strftime_now is defined }}{{ raise_exception is defined }}{{ nothing is defined }}", "TrueTrueFalse"}});
}

TEST_CASE("jinja: methods", "[text][jinja]") {
  check_all(
      {{"{{ '  a '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'xyaxy'.lstrip('yx') }}|{{ 'a\\n\\n'.rstrip('\\n') }}|{{ "
        "'éaé'.strip('é') }}",
        "a|a|axy|a|a"},
       {"{{ ' \\u3000é\\u2003\\x1c'.strip() }}|", "é|"},
       {"{{ 'a,b,,c'.split(',') | tojson }}{{ ' a  b c '.split() | tojson }}{{ ' a  b c '.split(none, 1) | tojson }}",
        "[\"a\", \"b\", \"\", \"c\"][\"a\", \"b\", \"c\"][\"a\", \"b c \"]"},
       {"{{ 'a,b,c'.split(',', 1) | tojson }}{{ ''.split(',') | tojson }}{{ ''.split() | tojson }}{{ "
        "'a--b'.split('--')[-1] }}",
        "[\"a\", \"b,c\"][\"\"][]b"},
       {"{{ 'abcabc'.replace('b', 'XX') }} {{ 'abcabc'.replace('b', 'X', 1) }} {{ 'ab'.replace('', '-') }} {{ "
        "'éa'.replace('', '-', 1) }}",
        "aXXcaXXc aXcabc -a-b- -éa"},
       {"{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('c', 'x')) }}{{ 'abc'.startswith('') }}{{ ''.startswith('a') "
        "}}",
        "TrueTrueTrueFalse"},
       {"{{ ', '.join(['a', 'b']) }}{{ 'aBc'.upper().lower() }}{{ 'élan'.capitalize() }}", "a, babcÉlan"},
       {"{{ messages[0].get('role') }}{{ messages[0].get('zz') }}{{ messages[0].get('zz', 'd') }}", "userNoned"},
       {"{{ messages[0].keys() | list | tojson }}{{ messages[0].values() | list | tojson }}",
        "[\"role\", \"content\"][\"user\", \"Hi\"]"}});
}

TEST_CASE("jinja: functions", "[text][jinja]") {
  check_all(
      {{"{% for i in range(2, 10, 3) %}{{ i }}{% endfor %}{% for i in range(3, 0, -1) %}{{ i }}{% endfor %}{{ range(0) "
        "| length }}",
        "2583210"}});
  auto today = [] {
    char buffer[64];
    const std::time_t now = std::time(nullptr);
    std::strftime(buffer, sizeof buffer, "%d %b %Y", std::localtime(&now));
    return std::string(buffer);
  };
  const std::string before = today(), written = run("{{ strftime_now('%d %b %Y') }}"), after = today();
  CHECK((written == before || written == after));
  check_refused({{"{{ strftime_now('%100d') }}", "line 1: 'strftime_now' does not know the conversion '%1'"},
                 {"\n{{ raise_exception('Conversation roles must\nalternate') }}",
                  "line 2: the template refuses the conversation: 'Conversation roles must\\nalternate'"}});
}

TEST_CASE("jinja: what is not known is refused with its line", "[text][jinja]") {
  check_refused({{"a\n\n{% frob %}", "t: line 3: unknown tag 'frob'"},
                 {"{% include 'x' %}", "unknown tag 'include'"},
                 {"\n{{ x | sorted }}", "line 2: unknown filter 'sorted'"},
                 {"{{ x is prime }}", "unknown test 'prime'"},
                 {"{{ [1] | select('prime') | list }}", "unknown test 'prime'"},
                 {"{{ [1] | map('map', 'map') }}", "unknown filter 'map' in 'map'"},
                 {"\n\n{{ frob(1) }}", "line 3: unknown function 'frob'"},
                 {"{{ 'x'.swapcase() }}", "a string has no method 'swapcase'"},
                 {"{{ messages.append(1) }}", "a list has no method 'append'"},
                 {"{% for a in [1] %}{{ loop.cycle }}{% endfor %}", "'loop' has no attribute 'cycle'"},
                 {"{% for a in [1] recursive %}{% endfor %}", "recursive"},
                 {"{{ f(*x) }}", "'*'"},
                 {"{{ 2 ** 3 }}", "found '**'"},
                 {"{{ '\\N{DASH}' }}", "'\\N'"},
                 {"{{ 'a' | trim(side='left') }}", "'trim' has no argument 'side'"},
                 {"{{ 'a' | trim('a', 'b') }}", "'trim' is given too many arguments"},
                 {"{{ 1 | tojson(sort_keys=true) }}", "'tojson' has no argument 'sort_keys'"}});
}

TEST_CASE("jinja: syntax errors name line, what was found and what was expected", "[text][jinja]") {
  check_refused(
      {{"\n{% if x %}\n\n", "line 3: the if of line 2 is never closed"},
       {"\n{{ 1", "line 2: a tag is opened with '{{' and never closed with '}}'"},
       {"{# a", "never closed with '#}'"},
       {"{{ 'a", "a string is opened with ' and never closed"},
       {"{% endif %}", "unexpected 'endif'"},
       {"{% if 1 %}{% endfor %}", "unexpected 'endfor'"},
       {"{{ a b }}", "expected '}}', found 'b'"},
       {"{{ }}", "expected a value, found '}}'"},
       {"{% set 1 = 2 %}", "expected a name, found '1'"},
       {"{% set true = 2 %}", "expected a name, found 'true'"},
       {"{% break %}", "'break' outside of a loop"},
       {"{% for i in [1] %}{% macro f() %}{% continue %}{% endmacro %}{% endfor %}", "'continue' outside of a loop"},
       {"{{ {1 2} }}", "expected ':'"},
       {"{{ x[ }}", "'}' closes nothing that is open"},
       {"{{ (] }}", "']' closes nothing that is open"},
       {"{{ x[] }}", "expected an index"},
       {"{{ x[1:2:3:4] }}", "expected ']'"},
       {"{{ a ! b }}", "unexpected character '!'"},
       {"{{ 1x }}", "'1x' is not a number"},
       {"{{ 1e999 }}", "out of range"},
       {"{{ f(a=1, 2) }}", "an argument without a name follows one with a name"},
       {"{% macro f(a=1, b) %}{% endmacro %}", "'b' without a default"},
       {"{{ '\\ud800' }}", "not a character"},
       {"{{ '\\xg0' }}", "lacks hexadecimal digits"}});
}

TEST_CASE("jinja: operations on wrong types name what they met", "[text][jinja]") {
  check_refused(
      {{"a\n{{ x.y }}", "line 2: 'x' is undefined, so that it has no 'y'"},
       {"{{ messages[0].a.b }}", "'messages[...].a' is undefined"},
       {"{{ x['y'] }}{{ 1 }}", "'x' is undefined"},
       {"{{ x.strip() }}", "'x' is undefined"},
       {"{{ 'a' +\n messages[0].nope }}", "line 1: 'messages[...].nope' is undefined and cannot be used with '+'"},
       {"{{ 1 + 'a' }}", "'+' does not take an integer and a string"},
       {"{{ 'a' + none }}", "'+' does not take a string and none"},
       {"{{ 1 < 'a' }}", "an integer and a string cannot be compared by size"},
       {"{{ 1 in 'a' }}", "`in` looks for an integer in a string"},
       {"{{ 1 in 2 }}", "`in` cannot look into an integer"},
       {"{% for a in 5 %}{% endfor %}", "an integer has no elements"},
       {"{% for a, b in [[1]] %}{% endfor %}", "elements of 2 values"},
       {"{{ messages }}", "a list is printed; only `tojson` writes one"},
       {"{{ namespace() }}", "a namespace is printed"},
       {"{{ range }}", "a function is printed"},
       {"{% macro f() %}{% endmacro %}{{ f }}", "a macro is printed"},
       {"{% for a in [1] %}{{ loop }}{% endfor %}", "the loop variable is printed"},
       {"{{ x | tojson }}", "'tojson' cannot write an undefined value"},
       {"{{ 1 / 0 }}{{ 2 }}", "division by zero"},
       {"{{ 1.5 % 0 }}", "division by zero"},
       {"{{ 'a'[::0] }}", "step of 0"},
       {"{{ range(1, 2, 0) }}", "step of 0"},
       {"{{ 'a'.split('') }}", "'split' at an empty string"},
       {"{{ messages[0].items }}", "is a method"},
       {"{{ messages() }}", "'messages' is a list and cannot be called"},
       {"{% set x.y = 2 %}", "only a namespace's attributes can be set"},
       {"{% set ns = namespace() %}{% set ns.me = ns %}", "a namespace cannot be put into"},
       {"{% macro f() %}{% endmacro %}{{ [f] }}", "a macro cannot be put into"},
       {"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "'f' is given too many arguments"},
       {"{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", "'f' has no argument 'b'"},
       {"{{ {1: 2} }}", "a mapping's key is an integer"}});
}

TEST_CASE("jinja: hostile templates end in an error", "[text][jinja]") {
  const int deep = 200000;
  check_refused(
      {{"{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}", "too much work"},
       {"{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}", "too much text"},
       {"{{ 'x' * 99999999999999999 }}", "too much text"},
       {"{{ ([1] * 99999999999999999) | length }}", "too much text"},
       {"{% set ns = namespace(a='x') %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
        "too much text"},
       {"{% set a = 'x' * 9999999 %}{% for i in range(999) %}{{ 'y' in a }}{% endfor %}", "too much text"},
       {"{{ range(99999999999999999) | length }}", "'range' of more than 100000"},
       {"{{ range(0, 99999999999999999, -1) | length }}{{ range(100001) | length }}", "'range' of more than 100000"},
       {"{% set ns = namespace(a=[]) %}{% for i in range(99999) %}{% set ns.a = [ns.a] %}{% endfor %}",
        "nested deeper than 100"},
       {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested too deeply"},
       {"{{ [1] | tojson(indent=9999999999) }}", "indent"},
       {"{% set ns = namespace(a=99999999999999999) %}{% for i in range(99) %}{% set ns.a = ns.a * ns.a %}{% endfor %}",
        "more than 128 bits"}});
  for (const std::string& source :
       {"{{ " + repeat("(", deep) + repeat(")", deep) + " }}", "{{ " + repeat("[", deep) + repeat("]", deep) + " }}",
        "{{ " + repeat("not ", deep) + "1 }}", "{{ " + repeat("-", deep) + "1 }}",
        "{{ 1" + repeat(" + 1", deep) + " }}", "{{ x" + repeat(".x", deep) + " }}",
        "{{ x" + repeat("|trim", deep) + " }}", "{{ x" + repeat(" is string", deep / 4) + " }}",
        "{{ 1" + repeat(" if 1 else 1", deep / 4) + " }}", repeat("{% if 1 %}", deep / 4),
        repeat("{% for a in b %}", deep / 4), "{{ x" + repeat("[x", deep) + repeat("]", deep) + " }}",
        "{{ " + repeat("{'a':", deep / 2) + "1" + repeat("}", deep / 2) + " }}"}) {
    INFO(source.substr(0, 40));
    CHECK_THAT(refused(source), Catch::Contains("nested deeper") || Catch::Contains("levels"));
  }
  // Long is not deep.
  CHECK(run("{{ [" + repeat("1,", deep) + "] | length }}") == std::to_string(deep));
  CHECK(run("{% if 0 %}" + repeat("{% elif 0 %}", 10000) + "{% else %}e{% endif %}") == "e");
  CHECK(run(repeat("{% set a = 1 %}", 10000) + "{{ a }}") == "1");
  CHECK_THAT(refused(std::string((1 << 20) + 1, 'x')), Catch::Contains("at most 1048576"));
}
