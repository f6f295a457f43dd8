#include "io/safetensors.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "io/json_reader.h"

namespace glyd::io {
namespace {

// The format's own limit, and bounds on what a header may hold within it, so that memory stays under a few hundred MB.
constexpr std::uint64_t kMostHeaderBytes = 100'000'000;
constexpr std::size_t kMostTensors = 1'000'000;
constexpr std::size_t kMostMetadata = 100'000;
constexpr std::size_t kMostRank = 4096;
constexpr std::size_t kMostExtraFields = 64;

struct DtypeRow {
  const char* name;
  int bits;
};

// In the order of enum Dtype.
constexpr DtypeRow kDtypes[] = {{"BOOL", 8},    {"U8", 8},          {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8},
                                {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F4", 4},      {"F6_E2M3", 6},
                                {"F6_E3M2", 6}, {"I16", 16},        {"U16", 16},        {"F16", 16},    {"BF16", 16},
                                {"I32", 32},    {"U32", 32},        {"F32", 32},        {"I64", 64},    {"U64", 64},
                                {"F64", 64},    {"C64", 64}};
static_assert(std::size(kDtypes) == static_cast<std::size_t>(Dtype::C64) + 1);

std::optional<Dtype> find_dtype(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kDtypes); ++i) {
    if (name == kDtypes[i].name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

// What the first bytes show instead of a length, for the files that people take for safetensors.
void refuse_other_formats(const std::string& path, std::string_view start) {
  if (start == "version ") {
    fail(Code::Model, "{}: a Git LFS pointer: the weights were not downloaded; run 'git lfs pull' or download the file",
         path);
  }
  if (start.starts_with("PK\x03\x04")) {
    fail(Code::Model, "{}: a zip archive, as PyTorch writes them, and not safetensors; convert it first", path);
  }
  if (start.starts_with("GGUF")) {
    fail(Code::Model, "{}: a GGUF file and not safetensors; use the model's safetensors release", path);
  }
  if (start.starts_with("<!") || start.starts_with("<html") || start.starts_with("<HTML")) {
    fail(Code::Model, "{}: a web page and not safetensors: the download went wrong; fetch it again", path);
  }
}

// The JSON header turned into tensors: rules 4 to 9 of the format.
class HeaderParser {
 public:
  HeaderParser(std::string_view header, const std::string& path)
      : path_(printable(path)), reader_(header, path + ": header") {}

  std::vector<Tensor> tensors;
  std::map<std::string, std::string> metadata;

  void parse() {
    std::string name;
    bool metadata_seen = false;
    if (reader_.kind() != JsonReader::Kind::Object) {
      fail(Code::Model, "{}: header: {} where an object was expected", path_, kind_name(reader_.kind()));
    }
    reader_.begin_object();
    while (reader_.next_key(name)) {
      if (name == "__metadata__") {
        if (std::exchange(metadata_seen, true)) fail(Code::Model, "{}: header: __metadata__ is given twice", path_);
        parse_metadata();
        continue;
      }
      if (tensors.size() == kMostTensors) {
        fail(Code::Model, "{}: header: more than {} tensors", path_, kMostTensors);
      }
      tensors.push_back(parse_tensor(std::move(name)));
      name.clear();
    }
    reader_.end();
  }

 private:
  void parse_metadata() {
    if (reader_.kind() != JsonReader::Kind::Object) {
      fail(Code::Model, "{}: header: __metadata__ is {}; the format wants an object of strings", path_,
           kind_name(reader_.kind()));
    }
    reader_.begin_object();
    std::string key, value;
    while (reader_.next_key(key)) {
      if (reader_.kind() != JsonReader::Kind::String) {
        fail(Code::Model, "{}: header: __metadata__: the value of {} is {}; the format allows only strings there",
             path_, quote(key), kind_name(reader_.kind()));
      }
      reader_.string(value);
      if (metadata.size() == kMostMetadata) {
        fail(Code::Model, "{}: header: __metadata__ has more than {} entries", path_, kMostMetadata);
      }
      if (!metadata.emplace(std::move(key), std::move(value)).second) {
        fail(Code::Model, "{}: header: __metadata__: the key {} is given twice", path_, quote(key));
      }
      key.clear(), value.clear();
    }
  }

  Tensor parse_tensor(std::string name) {
    Tensor tensor;
    tensor.name = std::move(name);
    bool has_dtype = false, has_shape = false, has_offsets = false;
    std::vector<std::string> extra;
    if (reader_.kind() != JsonReader::Kind::Object) wrong(tensor, "its entry", "an object");
    reader_.begin_object();
    std::string key;
    while (reader_.next_key(key)) {
      bool* seen = key == "dtype"          ? &has_dtype
                   : key == "shape"        ? &has_shape
                   : key == "data_offsets" ? &has_offsets
                                           : nullptr;
      const bool twice = seen ? std::exchange(*seen, true) : std::find(extra.begin(), extra.end(), key) != extra.end();
      if (twice) fail(Code::Model, "{}: tensor {}: {} is given twice", path_, quote(tensor.name), quote(key));
      if (key == "dtype") {
        parse_dtype(tensor);
      } else if (key == "shape") {
        parse_integers(tensor, "shape", "non-negative integers", kMostRank, tensor.shape);
      } else if (key == "data_offsets") {
        std::vector<std::uint64_t> offsets;
        parse_integers(tensor, "data_offsets", "two non-negative integers", 2, offsets);
        if (offsets.size() != 2) {
          fail(Code::Model, "{}: tensor {}: data_offsets has {} values, expected two", path_, quote(tensor.name),
               offsets.size());
        }
        tensor.begin = offsets[0], tensor.end = offsets[1];
      } else {
        if (extra.size() == kMostExtraFields) {
          fail(Code::Model, "{}: tensor {}: more than {} unknown fields", path_, quote(tensor.name), kMostExtraFields);
        }
        extra.push_back(key);
        reader_.skip();
      }
    }
    const char* missing = !has_dtype ? "dtype" : !has_shape ? "shape" : !has_offsets ? "data_offsets" : nullptr;
    if (missing) fail(Code::Model, "{}: tensor {}: {} is missing", path_, quote(tensor.name), missing);
    return tensor;
  }

  void parse_dtype(Tensor& tensor) {
    if (reader_.kind() != JsonReader::Kind::String) wrong(tensor, "dtype", "a string");
    std::string text;
    reader_.string(text);
    const auto dtype = find_dtype(text);
    if (!dtype) fail(Code::Model, "{}: tensor {}: unknown dtype {}", path_, quote(tensor.name), quote(text));
    tensor.dtype = *dtype;
  }

  void parse_integers(const Tensor& tensor, const char* field, const char* expected, std::size_t most,
                      std::vector<std::uint64_t>& out) {
    if (reader_.kind() != JsonReader::Kind::Array) wrong(tensor, field, expected);
    reader_.begin_array();
    while (reader_.next_element()) {
      if (reader_.kind() != JsonReader::Kind::Number) wrong(tensor, field, expected);
      const std::string_view text = reader_.number();
      const auto value = parse_unsigned(text);
      if (!value) {
        fail(Code::Model, "{}: tensor {}: {} holds {}; expected {} below 2^64", path_, quote(tensor.name), field,
             quote(text, 40), expected);
      }
      if (out.size() == most) {
        fail(Code::Model, "{}: tensor {}: {} has more than {} values", path_, quote(tensor.name), field, most);
      }
      out.push_back(*value);
    }
    out.shrink_to_fit();
  }

  [[noreturn]] void wrong(const Tensor& tensor, const char* field, const char* expected) {
    fail(Code::Model, "{}: tensor {}: {}: found {}, expected {}", path_, quote(tensor.name), field,
         kind_name(reader_.kind()), expected);
  }

  std::string path_;
  JsonReader reader_;
};

// Rule 10: tensors sorted by place fill the data area from its start without a gap or an overlap. Returns their end.
std::uint64_t check_places(const std::vector<Tensor>& tensors, std::uint64_t data_size, const std::string& path) {
  const auto refuse = [&](const Tensor& t, const std::string& why) {
    fail(Code::Model, "{}: tensor {}: data_offsets [{}, {}] {}", path, quote(t.name), t.begin, t.end, why);
  };
  for (const Tensor& t : tensors) {
    if (t.end < t.begin) refuse(t, "end before they begin");
  }
  std::uint64_t expected = 0;
  for (const Tensor& t : tensors) {
    if (t.begin < expected) refuse(t, fmt::format("overlap another tensor: the data before it ends at {}", expected));
    if (t.begin > expected) {
      // A tensor moved out of the file leaves a hole elsewhere; it is the one to name.
      const Tensor& last = tensors.back();
      if (last.end > data_size)
        refuse(last, fmt::format("lie outside the file, which has {} bytes of data", data_size));
      refuse(t, fmt::format("leave a hole: the data before it ends at {}", expected));
    }
    expected = t.end;
  }
  return expected;
}

// Rules 11 to 13: the bytes between the offsets are those that shape and dtype need.
void check_size(const Tensor& tensor, const std::string& path) {
  std::uint64_t bits = static_cast<std::uint64_t>(dtype_bits(tensor.dtype));
  for (const std::uint64_t dim : tensor.shape) {
    if (__builtin_mul_overflow(bits, dim, &bits)) {
      fail(Code::Model, "{}: tensor {}: shape {} of {} is larger than 2^64 bits", path, quote(tensor.name),
           shape_text(tensor.shape), dtype_name(tensor.dtype));
    }
  }
  if (bits % 8 != 0) {
    fail(Code::Model, "{}: tensor {}: shape {} of {} is {} bits, not whole bytes", path, quote(tensor.name),
         shape_text(tensor.shape), dtype_name(tensor.dtype), bits);
  }
  if (tensor.end - tensor.begin != bits / 8) {
    fail(Code::Model, "{}: tensor {}: shape {} of {} needs {} bytes, data_offsets [{}, {}] hold {}", path,
         quote(tensor.name), shape_text(tensor.shape), dtype_name(tensor.dtype), bits / 8, tensor.begin, tensor.end,
         tensor.end - tensor.begin);
  }
}

}  // namespace

const char* dtype_name(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].name; }
int dtype_bits(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].bits; }

std::string shape_text(std::span<const std::uint64_t> shape) {
  constexpr std::size_t kMostShown = 8;
  std::string text = "[";
  for (std::size_t i = 0; i < std::min(shape.size(), kMostShown); ++i)
    text += fmt::format("{}{}", i ? ", " : "", shape[i]);
  if (shape.size() > kMostShown) text += fmt::format(", ... {} dimensions", shape.size());
  return text + "]";
}

Safetensors Safetensors::open(const std::filesystem::path& path) {
  Safetensors file(File::open(path));
  const std::string where = printable(path.native());
  const std::uint64_t size = file.file_.size();
  if (size < 8) {
    fail(Code::Model, "{}: {} bytes, too small for a safetensors file: the download was interrupted; fetch it again",
         where, size);
  }
  unsigned char word[8];
  file.file_.read_at(0, std::as_writable_bytes(std::span(word)));
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | word[i];
  if (length > kMostHeaderBytes || length > size - 8) {
    refuse_other_formats(where, {reinterpret_cast<const char*>(word), 8});
    if (length > kMostHeaderBytes) {
      fail(Code::Model,
           "{}: the first 8 bytes give a header of {} bytes, more than the {} that safetensors allows; this is "
           "not a safetensors file, or it is damaged",
           where, length, kMostHeaderBytes);
    }
    fail(Code::Model, "{}: the header needs {} bytes, the file has {} after its length: cut short; fetch it again",
         where, length, size - 8);
  }
  file.data_begin_ = 8 + length;
  if (length == 0) fail(Code::Model, "{}: the header is empty, expected a JSON object", where);
  {
    const std::string header = file.header_text();
    HeaderParser parser(header, path.string());
    parser.parse();
    file.tensors_ = std::move(parser.tensors);
    file.metadata_ = std::move(parser.metadata);
  }
  std::sort(file.tensors_.begin(), file.tensors_.end(), [](const Tensor& a, const Tensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  file.index_names();
  const std::uint64_t data_size = size - file.data_begin_;
  const std::uint64_t data_end = check_places(file.tensors_, data_size, where);
  for (const Tensor& tensor : file.tensors_) check_size(tensor, where);
  if (data_end != data_size) {
    fail(Code::Model, "{}: the tensors take {} bytes of data, the file has {}: {}", where, data_end, data_size,
         data_end > data_size ? "cut short (an interrupted download?); fetch it again"
                              : "it goes on after the last tensor; fetch it again");
  }
  return file;
}

// Sorts indices by name and refuses a name that occurs twice (rule 6).
void Safetensors::index_names() {
  by_name_.resize(tensors_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(),
            [&](std::uint32_t a, std::uint32_t b) { return tensors_[a].name < tensors_[b].name; });
  const auto twice = std::adjacent_find(by_name_.begin(), by_name_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return tensors_[a].name == tensors_[b].name;
  });
  if (twice != by_name_.end()) {
    fail(Code::Model, "{}: tensor {} is given twice in the header", printable(path().native()),
         quote(tensors_[*twice].name));
  }
}

const Tensor* Safetensors::find(std::string_view name) const {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](std::uint32_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
  return it != by_name_.end() && tensors_[*it].name == name ? &tensors_[*it] : nullptr;
}

void Safetensors::read(const Tensor& tensor, std::uint64_t offset, std::span<std::byte> out) const {
  const std::uint64_t bytes = tensor.end - tensor.begin;
  if (offset > bytes || out.size() > bytes - offset) {
    fail(Code::Runtime, "{}: tensor {}: bytes [{}, +{}) asked for, it has {}", printable(path().native()),
         quote(tensor.name), offset, out.size(), bytes);
  }
  try {
    file_.read_at(data_begin_ + tensor.begin + offset, out);
  } catch (const Error& e) {
    fail(e.code(), "{} (reading tensor {})", e.what(), quote(tensor.name));
  }
}

std::string Safetensors::header_text() const {
  std::string text(data_begin_ - 8, '\0');
  file_.read_at(8, std::as_writable_bytes(std::span(text.data(), text.size())));
  return text;
}

}  // namespace glyd::io
