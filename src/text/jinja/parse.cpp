#include "text/jinja/parse.h"

#include <algorithm>
#include <initializer_list>

#include "text/jinja/expression_parser.h"

namespace glyd::text::jinja {
namespace {

// Tags and what is between them.
class Parser : ExpressionParser {
 public:
  Parser(std::vector<Token> tokens, Template& out) : ExpressionParser(std::move(tokens), out) {}

  void run() { out_.body = body({}, ""); }

 private:
  // Statements up to a tag whose word is in `ends`, whose word is then the next token; `opener` names what is open.
  Body body(std::initializer_list<std::string_view> ends, const std::string& opener) {
    const Nested nested(*this, block_depth_);
    const int open_line = tokens_[at_ > 0 ? at_ - 1 : 0].line;
    Body statements;
    while (true) {
      const Token& token = peek();
      if (token.kind == Kind::End) {
        if (ends.size() == 0) return statements;
        error_here("the " + opener + " of line " + std::to_string(open_line) + " is never closed");
      }
      if (token.kind == Kind::TagBegin) {
        ++at_;
        if (!is(Kind::Name)) expected("a tag");
        if (std::count(ends.begin(), ends.end(), peek().text)) return statements;
        statements.push_back(tag());
      } else {
        auto statement = make(token.kind == Kind::Text ? Stmt::Kind::Text : Stmt::Kind::Print);
        if (token.kind == Kind::Text) {
          statement->text = take().text;
        } else {
          ++at_;
          statement->value = expression();
          if (!is(Kind::PrintEnd)) expected("'}}'");
          ++at_;
        }
        statements.push_back(std::move(statement));
      }
    }
  }

  std::unique_ptr<Stmt> make(Stmt::Kind kind) const {
    auto statement = std::make_unique<Stmt>();
    statement->kind = kind;
    statement->line = peek().line;
    return statement;
  }

  std::unique_ptr<Stmt> tag() {
    const std::string word = peek().text;
    if (word == "if") return if_tag();
    if (word == "for") return for_tag();
    if (word == "set") return set_tag();
    if (word == "macro") return macro_tag();
    if (word == "break" || word == "continue") {
      auto statement = make(word == "break" ? Stmt::Kind::Break : Stmt::Kind::Continue);
      if (loop_depth_ == 0) error_here("'" + word + "' outside of a loop");
      ++at_;
      need_end();
      return statement;
    }
    if (word == "generation") {  // marks what a model wrote, for training; the text is the same
      auto statement = make(Stmt::Kind::Group);
      ++at_;
      need_end();
      statement->body = body({"endgeneration"}, "generation");
      close("endgeneration");
      return statement;
    }
    static constexpr std::string_view kStray[] = {"else",   "elif",     "endif",        "endfor",
                                                  "endset", "endmacro", "endgeneration"};
    if (std::count(std::begin(kStray), std::end(kStray), word)) error_here("unexpected '" + word + "'");
    error_here("unknown tag " + quote(word, 40) + ": " + std::string(kCure));
  }

  void close(std::string_view word) {
    need_word(word);
    need_end();
  }

  std::unique_ptr<Stmt> if_tag() {
    auto statement = make(Stmt::Kind::If);
    do {
      ++at_;  // if, elif
      Stmt::Branch branch;
      branch.condition = expression();
      need_end();
      branch.body = body({"elif", "else", "endif"}, "if");
      statement->branches.push_back(std::move(branch));
    } while (is_word("elif"));
    if (skip_word("else")) {
      need_end();
      statement->otherwise = body({"endif"}, "if");
    }
    close("endif");
    return statement;
  }

  std::unique_ptr<Stmt> for_tag() {
    auto statement = make(Stmt::Kind::For);
    ++at_;
    const bool parenthesised = skip_op("(");
    do {
      statement->targets.push_back(need_name());
    } while (skip_op(","));
    if (parenthesised) need_op(")");
    need_word("in");
    statement->value = or_expression();  // not a whole expression: an `if` here is the loop's condition
    if (skip_word("if")) statement->condition = expression();
    if (is_word("recursive")) error_here("recursive loops are not supported: " + std::string(kCure));
    need_end();
    ++loop_depth_;
    statement->body = body({"else", "endfor"}, "for");
    --loop_depth_;
    if (skip_word("else")) {
      need_end();
      statement->otherwise = body({"endfor"}, "for");
    }
    close("endfor");
    return statement;
  }

  std::unique_ptr<Stmt> set_tag() {
    auto statement = make(Stmt::Kind::Set);
    ++at_;
    statement->targets.push_back(need_name());
    if (skip_op(".")) statement->targets.push_back(need_name());
    if (statement->targets.size() == 1 && is(Kind::TagEnd)) {
      ++at_;
      statement->kind = Stmt::Kind::SetBlock;
      statement->body = body({"endset"}, "set");
      close("endset");
      return statement;
    }
    need_op("=");
    statement->value = expression();
    need_end();
    return statement;
  }

  std::unique_ptr<Stmt> macro_tag() {
    auto statement = make(Stmt::Kind::Macro);
    ++at_;
    statement->name = need_name();
    need_op("(");
    while (!skip_op(")")) {
      Stmt::Parameter parameter{need_name(), nullptr};
      if (skip_op("=")) {
        parameter.fallback = expression();
      } else if (!statement->parameters.empty() && statement->parameters.back().fallback) {
        error_here("the parameter " + quote(parameter.name, 40) + " without a default follows one with a default");
      }
      statement->parameters.push_back(std::move(parameter));
      if (!is_op(")")) need_op(",");
    }
    need_end();
    const int loops = std::exchange(loop_depth_, 0);
    statement->body = body({"endmacro"}, "macro");
    loop_depth_ = loops;
    close("endmacro");
    return statement;
  }

  int block_depth_ = 0, loop_depth_ = 0;
};

}  // namespace

Template parse(std::string_view source, const std::string& what) {
  if (source.size() > kMaxSource) {
    fail(Code::Model, "{}: a chat template of {} bytes; at most {} are accepted", printable(what), source.size(),
         kMaxSource);
  }
  const std::size_t good = valid_utf8_prefix(source);
  if (good != source.size()) fail(Code::Model, "{}: not UTF-8 at byte {}", printable(what), good);
  Template out;
  out.what = what;
  Parser(tokenize(source, what), out).run();
  return out;
}

std::string describe(const Expr& expr) {
  switch (expr.kind) {
    case Expr::Kind::Name:
      return expr.name;
    case Expr::Kind::Member:
      return describe(*expr.parts[0]) + "." + expr.name;
    case Expr::Kind::Item: {
      const Str* key = expr.parts[1]->constant.str();
      return describe(*expr.parts[0]) + (key ? "[" + quote(key->text, 40) + "]" : "[...]");
    }
    case Expr::Kind::Slice:
      return describe(*expr.parts[0]) + "[:]";
    case Expr::Kind::Call:
      return describe(*expr.parts[0]) + "(...)";
    case Expr::Kind::Filter:
      return "the result of " + expr.name;
    case Expr::Kind::Constant:
      return "a constant";
    default:
      return "an expression";
  }
}

}  // namespace glyd::text::jinja
