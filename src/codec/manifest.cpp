#include "codec/manifest.h"

#include <fmt/format.h>

#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "io/file.h"
#include "io/json.h"
#include "io/json_reader.h"

namespace glyd::codec {
namespace {

using io::JsonReader;
using io::parse_unsigned;

constexpr char kFormat[] = "glyd-packed";
constexpr std::uint64_t kVersion = 1;
constexpr std::uint64_t kMostBytes = 256 << 20;
constexpr std::size_t kMostItems = 1'000'000;  // matrices, members, tensors, files: bounds memory

std::string json_string(const std::string& text) {
  if (!is_valid_utf8(text)) fail(Code::Model, "{}: not UTF-8, so it cannot stand in {}", quote(text), kManifestName);
  return io::Json(text).dump();
}

// `items` as JSON text, one a line.
template <class Items, class Write>
std::string json_list(const Items& items, const char* indent, Write write) {
  std::string text = "[";
  for (const auto& item : items) {
    if (text.size() > 1) text += ",";
    text += fmt::format("\n{}{}", indent, write(item));
  }
  return text + "]";
}

std::string matrix_text(const Manifest::Matrix& m) {
  const std::string members = json_list(m.members, "   ", [](const Manifest::Member& member) {
    return fmt::format(R"({{"tensor": {}, "rows": {}}})", json_string(member.tensor), member.rows);
  });
  return fmt::format(
      R"({{"name": {}, "rows": {}, "cols": {}, "bytes": {}, "bits_per_weight": {:.4f}, "exceptions": {}, "members": {}}})",
      json_string(m.name), m.rows, m.cols, m.bytes, m.bits_a_weight(), m.exceptions, members);
}

std::string file_text(const Manifest::WeightFile& f) {
  const std::string tensors = json_list(f.tensors, "   ", [](const Manifest::Checksum& tensor) {
    return fmt::format(R"({{"name": {}, "sha256": "{}"}})", json_string(tensor.name), io::to_hex(tensor.sha256));
  });
  return fmt::format(R"({{"name": {}, "bytes": {}, "sha256": "{}", "header": {}, "tensors": {}}})", json_string(f.name),
                     f.bytes, io::to_hex(f.sha256), json_string(f.header), tensors);
}

std::string other_text(const Manifest::OtherFile& f) {
  return fmt::format(R"({{"name": {}, "bytes": {}, "sha256": "{}"}})", json_string(f.name), f.bytes,
                     io::to_hex(f.sha256));
}

// All of the text but the checksum and what follows it.
std::string text_to_sign(const Manifest& m) {
  std::string text = fmt::format("{{\n\"format\": \"{}\",\n\"version\": {},\n\"glyd_version\": {},\n", kFormat,
                                 kVersion, json_string(m.glyd_version));
  text += "\"matrices\": " + json_list(m.matrices, "  ", matrix_text) + ",\n";
  text += "\"files\": " + json_list(m.files, "  ", file_text) + ",\n";
  text += "\"others\": " + json_list(m.others, "  ", other_text) + ",\n";
  text += "\"index\": " + (m.index ? json_string(*m.index) : "null") + ",\n";
  return text;
}

// Reads the text key by key. Every object must have exactly the keys asked for.
class Parser {
 public:
  Parser(std::string_view text, const std::string& what)
      : what_(printable(what)), reader_(text, what, 16, "pack the original again") {}

  Manifest manifest;
  io::Digest checksum{};

  void parse() {
    if (reader_.kind() != JsonReader::Kind::Object) fail(Code::Model, "{}: expected a JSON object", what_);
    object({{"format", [&] { check_format(string("format")); }},
            {"version", [&] { check_version(number("version")); }},
            {"glyd_version", [&] { manifest.glyd_version = string("glyd_version"); }},
            {"matrices", [&] { list(manifest.matrices, &Parser::matrix); }},
            {"files", [&] { list(manifest.files, &Parser::weight_file); }},
            {"others", [&] { list(manifest.others, &Parser::other_file); }},
            {"index", [&] { index(); }},
            {"sha256", [&] { checksum = digest("sha256"); }}});
    reader_.end();
  }

 private:
  using Fields = std::map<std::string, std::function<void()>, std::less<>>;

  void object(const Fields& fields) {
    if (reader_.kind() != JsonReader::Kind::Object) wrong("an item", "an object");
    std::set<std::string, std::less<>> seen;
    std::string key;
    reader_.begin_object();
    while (reader_.next_key(key)) {
      const auto field = fields.find(key);
      if (field == fields.end()) fail(Code::Model, "{}: unknown key {}", what_, quote(key));
      if (!seen.insert(key).second) fail(Code::Model, "{}: {} is given twice", what_, quote(key));
      field->second();
    }
    for (const auto& [name, read] : fields) {
      if (!seen.contains(name)) fail(Code::Model, "{}: {} is missing", what_, quote(name));
    }
  }

  template <class Item>
  void list(std::vector<Item>& items, Item (Parser::*read)()) {
    if (reader_.kind() != JsonReader::Kind::Array) wrong("a list", "an array");
    reader_.begin_array();
    while (reader_.next_element()) {
      if (++items_ > kMostItems) fail(Code::Model, "{}: more than {} items", what_, kMostItems);
      items.push_back((this->*read)());
    }
  }

  std::string string(const char* field) {
    if (reader_.kind() != JsonReader::Kind::String) wrong(field, "a string");
    std::string text;
    reader_.string(text);
    return text;
  }

  std::uint64_t number(const char* field) {
    if (reader_.kind() != JsonReader::Kind::Number) wrong(field, "a whole number");
    const std::string_view text = reader_.number();
    const auto value = parse_unsigned(text);
    if (!value) fail(Code::Model, "{}: {} is {}, expected a whole number", what_, field, quote(text));
    return *value;
  }

  io::Digest digest(const char* field) {
    const std::string text = string(field);
    const auto value = io::from_hex(text);
    if (!value) fail(Code::Model, "{}: {} is {}, expected 64 hexadecimal digits", what_, field, quote(text));
    return *value;
  }

  std::string file_name(const char* field) {
    std::string name = string(field);
    if (!io::is_plain_name(name)) {
      fail(Code::Model, "{}: {} is not a plain file name inside the directory", what_, quote(name));
    }
    return name;
  }

  Manifest::Member member() {
    Manifest::Member m;
    object({{"tensor", [&] { m.tensor = string("tensor"); }}, {"rows", [&] { m.rows = number("rows"); }}});
    return m;
  }

  Manifest::Matrix matrix() {
    Manifest::Matrix m;
    object({{"name", [&] { m.name = string("name"); }},
            {"rows", [&] { m.rows = number("rows"); }},
            {"cols", [&] { m.cols = number("cols"); }},
            {"bytes", [&] { m.bytes = number("bytes"); }},
            {"bits_per_weight", [&] { reader_.skip(); }},  // for people; it follows from the others
            {"exceptions", [&] { m.exceptions = number("exceptions"); }},
            {"members", [&] { list(m.members, &Parser::member); }}});
    std::uint64_t rows = 0, weights = 0;
    for (const Manifest::Member& part : m.members) {
      if (__builtin_add_overflow(rows, part.rows, &rows)) rows = ~std::uint64_t{0};
    }
    if (m.members.empty() || rows != m.rows) {
      fail(Code::Model, "{}: matrix {} has {} rows, its members have {}", what_, quote(m.name), m.rows, rows);
    }
    if (__builtin_mul_overflow(m.rows, m.cols, &weights) || weights > std::uint64_t{1} << 60) {
      fail(Code::Model, "{}: matrix {} of {} x {} is too large", what_, quote(m.name), m.rows, m.cols);
    }
    return m;
  }

  Manifest::Checksum tensor() {
    Manifest::Checksum t;
    object({{"name", [&] { t.name = string("name"); }}, {"sha256", [&] { t.sha256 = digest("sha256"); }}});
    return t;
  }

  Manifest::WeightFile weight_file() {
    Manifest::WeightFile f;
    object({{"name", [&] { f.name = file_name("name"); }},
            {"bytes", [&] { f.bytes = number("bytes"); }},
            {"sha256", [&] { f.sha256 = digest("sha256"); }},
            {"header", [&] { f.header = string("header"); }},
            {"tensors", [&] { list(f.tensors, &Parser::tensor); }}});
    return f;
  }

  Manifest::OtherFile other_file() {
    Manifest::OtherFile f;
    object({{"name", [&] { f.name = file_name("name"); }},
            {"bytes", [&] { f.bytes = number("bytes"); }},
            {"sha256", [&] { f.sha256 = digest("sha256"); }}});
    return f;
  }

  void index() {
    if (reader_.kind() == JsonReader::Kind::Null) return reader_.skip();
    manifest.index = string("index");
  }

  void check_format(const std::string& format) {
    if (format != kFormat) {
      fail(Code::Model, "{}: format is {}, expected '{}': this is not a packed directory of this program", what_,
           quote(format), kFormat);
    }
  }

  void check_version(std::uint64_t version) {
    if (version != kVersion) {
      fail(Code::Model,
           "{}: format version {}, and this program reads version {}; use the program that packed it, or pack the "
           "original again",
           what_, version, kVersion);
    }
  }

  [[noreturn]] void wrong(const char* field, const char* expected) {
    fail(Code::Model, "{}: {} is {}, expected {}", what_, field, io::kind_name(reader_.kind()), expected);
  }

  std::string what_;
  JsonReader reader_;
  std::size_t items_ = 0;
};

void check_names(const Manifest& m, const std::string& what) {
  std::set<std::string_view> matrices, members, files;
  const auto once = [&](std::set<std::string_view>& names, std::string_view name, const char* kind) {
    if (!names.insert(name).second) fail(Code::Model, "{}: {} {} is given twice", what, kind, quote(name));
  };
  for (const Manifest::Matrix& matrix : m.matrices) {
    once(matrices, matrix.name, "matrix");
    for (const Manifest::Member& member : matrix.members) once(members, member.tensor, "tensor");
  }
  once(files, kManifestName, "file");
  if (m.index) once(files, "model.safetensors.index.json", "file");
  for (const Manifest::WeightFile& file : m.files) {
    once(files, file.name, "file");
    std::set<std::string_view> tensors;
    for (const Manifest::Checksum& tensor : file.tensors) once(tensors, tensor.name, "tensor");
  }
  for (const Manifest::OtherFile& file : m.others) once(files, file.name, "file");
}

}  // namespace

double Manifest::Matrix::bits_a_weight() const {
  const double weights = static_cast<double>(rows) * static_cast<double>(cols);
  return weights == 0 ? 0 : 8.0 * static_cast<double>(bytes) / weights;
}

std::string manifest_text(const Manifest& manifest) {
  std::string text = text_to_sign(manifest);
  text += fmt::format("\"sha256\": \"{}\"\n}}\n", io::to_hex(io::Sha256::of(text)));
  if (text.size() > kMostBytes) {
    fail(Code::Model, "{}: {} bytes would be needed, more than the {} it may have; the headers are too long",
         kManifestName, text.size(), kMostBytes);
  }
  return text;
}

Manifest parse_manifest(std::string_view text, const std::string& what) {
  Parser parser(text, what);
  parser.parse();
  check_names(parser.manifest, printable(what));
  if (io::Sha256::of(text_to_sign(parser.manifest)) != parser.checksum) {
    fail(Code::Model,
         "{}: its content does not match its own checksum; the file is damaged or was edited: pack the original again",
         printable(what));
  }
  return std::move(parser.manifest);
}

Manifest load_manifest(const std::filesystem::path& dir) {
  const std::filesystem::path path = dir / kManifestName;
  return parse_manifest(io::read_text(path, kMostBytes), path.string());
}

}  // namespace glyd::codec
