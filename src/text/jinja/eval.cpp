#include "text/jinja/eval.h"

#include <algorithm>
#include <unordered_map>

#include "base/text.h"
#include "text/jinja/operators.h"

namespace glyd::text::jinja {

// The variables of a block. `set` writes the innermost scope; reading goes outwards. Keys point into the template.
struct Scope {
  const Scope* parent = nullptr;
  std::unordered_map<std::string_view, Value> variables;
};

// What `loop` is inside of a for.
struct Loop {
  const std::vector<Value>& items;
  std::size_t index = 0;
};

namespace {

enum class Flow { Next, Break, Continue };

class Evaluator {
 public:
  explicit Evaluator(Context& context) : context_(context) {}

  StrPtr run(const Template& source, const std::vector<std::pair<std::string, Value>>& variables) {
    Scope scope;
    for (const auto& [name, value] : variables) scope.variables.emplace(name, value);
    StrBuilder out;
    block(source.body, scope, out);
    return out.take();
  }

 private:
  // Counts nested evaluations, so that no template can use up the stack.
  struct Deeper {
    explicit Deeper(Evaluator& e) : evaluator(e) {
      if (++e.depth_ > kMaxEvaluationDepth) e.context_.error("macros or expressions are nested too deeply");
    }
    ~Deeper() { --evaluator.depth_; }
    Evaluator& evaluator;
  };

  // --- statements ----------------------------------------------------------------------------------------------------

  Flow block(const Body& body, Scope& scope, StrBuilder& out) {
    for (const auto& statement : body) {
      const Flow flow = execute(*statement, scope, out);
      if (flow != Flow::Next) return flow;
    }
    return Flow::Next;
  }

  Flow execute(const Stmt& s, Scope& scope, StrBuilder& out) {
    const Deeper deeper(*this);
    context_.line = s.line;
    context_.spend_step();
    switch (s.kind) {
      case Stmt::Kind::Text:
        context_.spend_bytes(s.text.size());
        out.append(s.text);
        return Flow::Next;
      case Stmt::Kind::Print:
        print(s, scope, out);
        return Flow::Next;
      case Stmt::Kind::If:
        return branch(s, scope, out);
      case Stmt::Kind::For:
        return loop(s, scope, out);
      case Stmt::Kind::Set:
        set(s, scope);
        return Flow::Next;
      case Stmt::Kind::SetBlock: {
        StrBuilder text;
        const Flow flow = block(s.body, scope, text);
        if (flow == Flow::Next) scope.variables[s.targets[0]] = text.take();
        return flow;
      }
      case Stmt::Kind::Macro:
        scope.variables[s.name] = Macro{&s, &scope};
        return Flow::Next;
      case Stmt::Kind::Group:
        return block(s.body, scope, out);
      case Stmt::Kind::Break:
        return Flow::Break;
      case Stmt::Kind::Continue:
        return Flow::Continue;
    }
    return Flow::Next;
  }

  void print(const Stmt& s, Scope& scope, StrBuilder& out) {
    const Value value = eval(*s.value, scope);
    context_.line = s.line;
    append_text(context_, out, value);
  }

  Flow branch(const Stmt& s, Scope& scope, StrBuilder& out) {
    for (const Stmt::Branch& b : s.branches) {
      if (truthy(eval(*b.condition, scope))) return block(b.body, scope, out);
    }
    return block(s.otherwise, scope, out);
  }

  void set(const Stmt& s, Scope& scope) {
    Value value = eval(*s.value, scope);
    context_.line = s.line;
    if (s.targets.size() == 1) {
      scope.variables[s.targets[0]] = std::move(value);
      return;
    }
    const Value target = look_up(scope, s.targets[0]);
    const NamespacePtr* ns = target.as<NamespacePtr>();
    if (!ns) {
      context_.error("{} is {}; only a namespace's attributes can be set", quote(s.targets[0], 40), type_name(target));
    }
    check_storable(context_, value);
    context_.spend_bytes(sizeof(Value));
    (*ns)->items[s.targets[1]] = std::move(value);
  }

  void bind(const Stmt& s, Scope& scope, const Value& item) {
    context_.line = s.line;
    if (s.targets.size() == 1) {
      scope.variables[s.targets[0]] = item;
      return;
    }
    const List* list = item.list();
    if (!list || list->items.size() != s.targets.size()) {
      context_.error("the loop takes elements of {} values, this one is {}", s.targets.size(), type_name(item));
    }
    for (std::size_t i = 0; i < s.targets.size(); ++i) scope.variables[s.targets[i]] = list->items[i];
  }

  Flow loop(const Stmt& s, Scope& scope, StrBuilder& out) {
    const Value iterated = eval(*s.value, scope);
    context_.line = s.line;
    ListPtr list = elements(context_, iterated);
    if (s.condition) {
      std::vector<Value> kept;
      for (const Value& item : list->items) {
        Scope inner{&scope, {}};
        bind(s, inner, item);
        if (truthy(eval(*s.condition, inner))) kept.push_back(item);
      }
      list = std::get<ListPtr>(make_list(context_, std::move(kept)).v);
    }
    bool completed = false;  // an iteration that neither broke nor continued; without one, Jinja runs the else
    Loop state{list->items};
    for (; state.index < list->items.size(); ++state.index) {
      context_.spend_step();
      Scope inner{&scope, {}};
      inner.variables["loop"] = static_cast<const Loop*>(&state);
      bind(s, inner, list->items[state.index]);
      const Flow flow = block(s.body, inner, out);
      completed |= flow == Flow::Next;
      if (flow == Flow::Break) break;
    }
    return completed ? Flow::Next : block(s.otherwise, scope, out);
  }

  // --- expressions ---------------------------------------------------------------------------------------------------

  Value eval(const Expr& e, Scope& scope) {
    const Deeper deeper(*this);
    context_.line = e.line;
    context_.spend_step();
    switch (e.kind) {
      case Expr::Kind::Constant:
        return e.constant;
      case Expr::Kind::Name:
        return look_up(scope, e.name);
      case Expr::Kind::List:
        return list_literal(e, scope);
      case Expr::Kind::Dict:
        return dict_literal(e, scope);
      case Expr::Kind::Member:
        return member_of(e, scope);
      case Expr::Kind::Item:
        return item_of(e, scope);
      case Expr::Kind::Slice:
        return slice_of(e, scope);
      case Expr::Kind::Call:
        return call(e, scope);
      case Expr::Kind::Filter:
        return filter(e, scope);
      case Expr::Kind::Test:
        return test(e, scope);
      case Expr::Kind::Not:
        return !truthy(eval(*e.parts[0], scope));
      case Expr::Kind::Negate:
        return negation(e, scope);
      case Expr::Kind::And:
      case Expr::Kind::Or:
        return either(e, scope);
      case Expr::Kind::If:
        return conditional(e, scope);
      case Expr::Kind::Binary:
        return binary(e, scope);
      case Expr::Kind::Compare:
        return comparison(e, scope);
    }
    return Value();
  }

  static Value look_up(const Scope& scope, std::string_view name) {
    for (const Scope* s = &scope; s != nullptr; s = s->parent) {
      const auto at = s->variables.find(name);
      if (at != s->variables.end()) return at->second;
    }
    if (const FunctionDef* function = find_function(name)) return function;
    return Value();
  }

  Value list_literal(const Expr& e, Scope& scope) {
    std::vector<Value> items;
    for (const ExprPtr& part : e.parts) items.push_back(eval(*part, scope));
    context_.line = e.line;
    return make_list(context_, std::move(items));
  }

  Value dict_literal(const Expr& e, Scope& scope) {
    std::vector<std::pair<StrPtr, Value>> items;
    for (std::size_t i = 0; i < e.parts.size(); i += 2) {
      const Value key = eval(*e.parts[i], scope);
      Value item = eval(*e.parts[i + 1], scope);
      context_.line = e.line;
      if (!key.str()) context_.error("a mapping's key is {}, not a string", type_name(key));
      context_.spend_bytes(8 * items.size());
      const auto same = std::find_if(items.begin(), items.end(),
                                     [&](const auto& entry) { return entry.first->text == key.str()->text; });
      if (same != items.end())
        same->second = std::move(item);
      else
        items.emplace_back(*key.as<StrPtr>(), std::move(item));
    }
    return make_dict(context_, std::move(items));
  }

  Value member_of(const Expr& e, Scope& scope) {
    const Value object = eval(*e.parts[0], scope);
    context_.line = e.line;
    if (const Loop* const* loop = object.as<const Loop*>()) return loop_member(**loop, e.name);
    if (is_method(object, e.name)) {
      context_.error("{} is a method; call it, or write ['{}'] for an element of that name", quote(describe(e), 80),
                     e.name);
    }
    if (object.is<Undefined>()) return member(context_, object, e.name, describe(*e.parts[0]));
    return member(context_, object, e.name, "");
  }

  Value loop_member(const Loop& loop, std::string_view name) {
    const Integer index = static_cast<Integer>(loop.index), length = static_cast<Integer>(loop.items.size());
    if (name == "index0") return index;
    if (name == "index") return index + 1;
    if (name == "revindex0") return length - index - 1;
    if (name == "revindex") return length - index;
    if (name == "first") return index == 0;
    if (name == "last") return index + 1 == length;
    if (name == "length") return length;
    if (name == "previtem") return loop.index == 0 ? Value() : loop.items[loop.index - 1];
    if (name == "nextitem") return index + 1 == length ? Value() : loop.items[loop.index + 1];
    context_.error("'loop' has no attribute {} that is known here", quote(name, 40));
  }

  Value item_of(const Expr& e, Scope& scope) {
    const Value object = eval(*e.parts[0], scope);
    const Value key = eval(*e.parts[1], scope);
    context_.line = e.line;
    return item(context_, object, key, object.is<Undefined>() ? describe(*e.parts[0]) : "");
  }

  Value slice_of(const Expr& e, Scope& scope) {
    const Value object = eval(*e.parts[0], scope);
    Value bounds[3];
    for (int i = 0; i < 3; ++i) {
      const ExprPtr& part = e.parts[static_cast<std::size_t>(i) + 1];
      bounds[i] = part ? eval(*part, scope) : Value(None{});
    }
    context_.line = e.line;
    return slice(context_, object, bounds[0], bounds[1], bounds[2]);
  }

  // The arguments of a call, a filter or a test: everything behind the first part.
  Arguments arguments(const Expr& e, Scope& scope, std::string_view callee) {
    Arguments a(context_, callee);
    for (std::size_t i = 1; i < e.parts.size(); ++i) a.positional.push_back(eval(*e.parts[i], scope));
    for (const auto& [name, value] : e.keywords) a.keywords.emplace_back(name, eval(*value, scope));
    context_.line = e.line;
    return a;
  }

  Value filter(const Expr& e, Scope& scope) {
    const Value input = eval(*e.parts[0], scope);
    Arguments a = arguments(e, scope, e.name);
    return e.filter->apply(input, a);
  }

  Value test(const Expr& e, Scope& scope) {
    const Value input = eval(*e.parts[0], scope);
    Arguments a = arguments(e, scope, e.name);
    return e.test->apply(input, a);
  }

  Value call(const Expr& e, Scope& scope) {
    const Expr& callee = *e.parts[0];
    if (callee.kind == Expr::Kind::Member) {
      const Value object = eval(*callee.parts[0], scope);
      if (object.is<Undefined>()) {
        context_.error("{} is undefined, so that it has no {}", quote(describe(*callee.parts[0]), 80),
                       quote(callee.name, 40));
      }
      Arguments a = arguments(e, scope, callee.name);
      return call_method(object, callee.name, a);
    }
    const Value function = eval(callee, scope);
    Arguments a = arguments(e, scope, callee.name);
    if (const FunctionDef* const* known = function.as<const FunctionDef*>()) return (*known)->apply(a);
    if (const Macro* macro = function.as<Macro>()) return call_macro(*macro, a);
    if (function.is<Undefined>()) context_.error("unknown function {}", quote(describe(callee), 80));
    context_.error("{} is {} and cannot be called", quote(describe(callee), 80), type_name(function));
  }

  Value call_macro(const Macro& macro, Arguments& a) {
    Scope inner{macro.scope, {}};
    for (const Stmt::Parameter& p : macro.definition->parameters) {
      const Value* given = a.take(p.name);
      Value value = given ? *given : p.fallback ? eval(*p.fallback, inner) : Value();
      inner.variables[p.name] = std::move(value);
    }
    a.done();
    StrBuilder out;
    block(macro.definition->body, inner, out);
    return out.take();
  }

  Value negation(const Expr& e, Scope& scope) {
    const Value value = eval(*e.parts[0], scope);
    context_.line = e.line;
    return negate(context_, value);
  }

  Value either(const Expr& e, Scope& scope) {
    Value left = eval(*e.parts[0], scope);
    if (truthy(left) == (e.kind == Expr::Kind::Or)) return left;
    return eval(*e.parts[1], scope);
  }

  Value conditional(const Expr& e, Scope& scope) {
    if (truthy(eval(*e.parts[0], scope))) return eval(*e.parts[1], scope);
    return e.parts[2] ? eval(*e.parts[2], scope) : Value();
  }

  Value binary(const Expr& e, Scope& scope) {
    const Value left = eval(*e.parts[0], scope);
    const Value right = eval(*e.parts[1], scope);
    context_.line = e.line;
    if (e.name != "~") {
      for (const auto* side : {&left, &right}) {
        if (!side->is<Undefined>()) continue;
        const Expr& part = *e.parts[side == &left ? 0 : 1];
        context_.error("{} is undefined and cannot be used with '{}'", quote(describe(part), 80), e.name);
      }
    }
    return arithmetic(context_, e.name, left, right);
  }

  Value comparison(const Expr& e, Scope& scope) {
    Value left = eval(*e.parts[0], scope);
    for (std::size_t i = 0; i < e.operators.size(); ++i) {
      Value right = eval(*e.parts[i + 1], scope);
      context_.line = e.line;
      if (!compare(e.operators[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  bool compare(std::string_view op, const Value& a, const Value& b) {
    if (op == "==") return equal(context_, a, b);
    if (op == "!=") return !equal(context_, a, b);
    if (op == "in") return contains(context_, a, b);
    if (op == "not in") return !contains(context_, a, b);
    if (op == "<") return less(context_, a, b);
    if (op == ">") return less(context_, b, a);
    if (op == "<=") return less(context_, a, b) || equal(context_, a, b);
    return less(context_, b, a) || equal(context_, a, b);
  }

  Context& context_;
  int depth_ = 0;
};

}  // namespace

StrPtr evaluate(const Template& source, Context& context, const std::vector<std::pair<std::string, Value>>& variables) {
  return Evaluator(context).run(source, variables);
}

}  // namespace glyd::text::jinja
