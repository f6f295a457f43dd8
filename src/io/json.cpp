#include "io/json.h"

#include <set>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "io/json_reader.h"

namespace glyd::io {
namespace {

// Builds the value from parser events, so that depth and duplicate keys are checked before anything is built.
template <class J>
class Builder : public nlohmann::json_sax<J> {
 public:
  using Base = nlohmann::json_sax<J>;
  using typename Base::binary_t;
  using typename Base::number_float_t;
  using typename Base::number_integer_t;
  using typename Base::number_unsigned_t;
  using typename Base::string_t;

  explicit Builder(int max_depth) : max_depth_(max_depth) {}

  bool null() override { return put(J(nullptr)); }
  bool boolean(bool v) override { return put(J(v)); }
  bool number_integer(number_integer_t v) override { return put(J(v)); }
  bool number_unsigned(number_unsigned_t v) override { return put(J(v)); }
  bool number_float(number_float_t v, const string_t&) override { return put(J(v)); }
  bool string(string_t& v) override { return put(J(std::move(v))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(J::object()); }
  bool start_array(std::size_t) override { return open(J::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& k) override {
    if (!is_new(k)) return stop("the key " + quote(k) + " occurs twice in one object");
    keys_.back() = std::move(k);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    // The library's text ends in what it expected; its own prefix is of no use to a reader.
    const std::string text = e.what();
    const auto colon = text.rfind(": ");
    const std::string why = shorten(colon == std::string::npos ? text : text.substr(colon + 2));
    return stop("byte " + std::to_string(position) + ": " + why);
  }

  J result;
  std::string error;

 private:
  static constexpr bool kOrdered = std::is_same_v<J, OrderedJson>;  // its look-up is linear: keys are kept aside

  bool is_new(const string_t& k) {
    if constexpr (kOrdered) return seen_.back().insert(k).second;
    return !stack_.back().contains(k);
  }

  // The library's text quotes what it read last, however long that is.
  static std::string shorten(const std::string& text) {
    constexpr std::size_t kLongest = 200;
    if (text.size() <= kLongest) return printable(text);
    return printable(text.substr(0, kLongest / 2)) + "..." + printable(text.substr(text.size() - kLongest / 2));
  }

  bool stop(std::string why) {
    if (error.empty()) error = std::move(why);
    return false;
  }

  bool open(J value) {
    if (static_cast<int>(stack_.size()) >= max_depth_) {
      return stop("nested deeper than " + std::to_string(max_depth_) + " levels");
    }
    stack_.push_back(std::move(value));
    keys_.emplace_back();
    if constexpr (kOrdered) seen_.emplace_back();
    return true;
  }

  bool close() {
    J value = std::move(stack_.back());
    stack_.pop_back();
    keys_.pop_back();
    if constexpr (kOrdered) seen_.pop_back();
    return put(std::move(value));
  }

  bool put(J value) {
    if (stack_.empty()) {
      result = std::move(value);
    } else if (stack_.back().is_array()) {
      stack_.back().push_back(std::move(value));
    } else if constexpr (kOrdered) {
      stack_.back().template get_ref<typename J::object_t&>().emplace_back(std::move(keys_.back()), std::move(value));
    } else {
      stack_.back().emplace(std::move(keys_.back()), std::move(value));
    }
    return true;
  }

  int max_depth_;
  std::vector<J> stack_;
  std::vector<std::string> keys_;            // of the value that comes next, for every open object
  std::vector<std::set<std::string>> seen_;  // ordered objects only
};

template <class J>
J parse(std::string_view text, const std::string& what, int max_depth) {
  const std::size_t good = valid_utf8_prefix(text);
  if (good != text.size()) {
    fail(Code::Model, "{}: not UTF-8 at byte {}; {}: fetch it again", printable(what), good, what_broke_json(text));
  }
  Builder<J> builder(max_depth);
  const bool ok = J::sax_parse(text.begin(), text.end(), &builder);
  if (!ok || !builder.error.empty()) {
    fail(Code::Model, "{}: not valid JSON: {}; {}: fetch it again", printable(what),
         builder.error.empty() ? "it cannot be parsed" : builder.error, what_broke_json(text));
  }
  return std::move(builder.result);
}

}  // namespace

Json parse_json(std::string_view text, const std::string& what, int max_depth) {
  return parse<Json>(text, what, max_depth);
}

OrderedJson parse_ordered_json(std::string_view text, const std::string& what, int max_depth) {
  return parse<OrderedJson>(text, what, max_depth);
}

}  // namespace glyd::io
