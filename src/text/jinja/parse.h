#pragma once
// A template as a tree.

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/builtins.h"
#include "text/jinja/value.h"

namespace glyd::text::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind {
    Constant,  // constant
    Name,      // name
    List,      // parts: elements
    Dict,      // parts: key, value, key, value, ...
    Member,    // parts[0].name
    Item,      // parts[0][parts[1]]
    Slice,     // parts[0][parts[1]:parts[2]:parts[3]], each bound may be null
    Call,      // parts[0](parts[1..], keywords)
    Filter,    // parts[0] | name(parts[1..], keywords)
    Test,      // parts[0] is name(parts[1..], keywords)
    Not,       // parts[0]
    Negate,    // parts[0]
    And,       // parts[0], parts[1]
    Or,
    If,       // parts[1] if parts[0] else parts[2], which may be null
    Binary,   // parts[0] name parts[1], name being an arithmetic operator
    Compare,  // parts[0] operators[0] parts[1] operators[1] parts[2] ...
  };
  Kind kind;
  int line = 0;
  int depth = 1;  // of the tree below and including this
  std::string name;
  Value constant;
  std::vector<ExprPtr> parts;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  std::vector<std::string> operators;
  const FilterDef* filter = nullptr;
  const TestDef* test = nullptr;
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct Stmt {
  enum class Kind {
    Text,      // text
    Print,     // value
    If,        // branches in order, else `otherwise`
    For,       // targets in value, if condition: body; otherwise
    Set,       // targets[0] = value, or targets[0].targets[1] = value
    SetBlock,  // targets[0] = what body writes
    Macro,     // name(parameters): body
    Group,     // body
    Break,
    Continue
  };
  struct Branch {
    ExprPtr condition;
    Body body;
  };
  struct Parameter {
    std::string name;
    ExprPtr fallback;  // null: undefined
  };
  Kind kind;
  int line = 0;
  std::string text;
  std::string name;
  ExprPtr value, condition;
  std::vector<std::string> targets;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  Body body, otherwise;
};

struct Template {
  std::string what;  // opens every message
  Body body;
  std::set<std::string, std::less<>> names;  // every variable that is read
};

// Throws Error(Model) with `what` and the line: a syntax error; a tag, filter or test that is not known; more than
// kMaxSource bytes, or nesting beyond the limits of value.h.
Template parse(std::string_view source, const std::string& what);

// `expr` as a person would name it in a message: "message.content", or what kind of expression it is.
std::string describe(const Expr& expr);

}  // namespace glyd::text::jinja
