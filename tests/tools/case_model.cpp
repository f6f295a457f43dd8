#include "case_model.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <stdexcept>

#include "base/bf16.h"
#include "support/fixtures.h"

namespace glyd::test {
namespace {

namespace fs = std::filesystem;
using io::Json;

constexpr const char* kWeights = "model.safetensors";

// A key that no code reads would be a test that tests nothing.
void expect_keys(const Json& object, const std::set<std::string>& known, const std::string& where) {
  for (const auto& [key, value] : object.items()) {
    if (!known.contains(key)) throw std::runtime_error(where + ": unknown key " + key);
  }
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

// Text as it stands, {"hex": "00ff"}, {"repeat": [["ab", 1000], ["c", 1]]}, or another JSON value written as such.
std::string bytes_of(const Json& value) {
  if (value.is_string()) return value;
  if (value.is_object() && value.contains("hex")) return from_hex(value.at("hex"));
  if (!value.is_object() || !value.contains("repeat")) return value.dump();
  std::string bytes;
  for (const Json& part : value.at("repeat")) {
    for (int i = 0; i < part.at(1).get<int>(); ++i) bytes += part.at(0).get<std::string>();
  }
  return bytes;
}

std::uint64_t elements(const std::vector<std::uint64_t>& shape) {
  std::uint64_t n = 1;
  for (const std::uint64_t dim : shape) n *= dim;
  return n;
}

// The bytes of bf16 values in another type. The formula's values are multiples of 1/512 below 2: exact in F16 and F32.
std::string converted(const std::string& bf16, const std::string& dtype) {
  std::string out;
  for (std::size_t i = 0; i + 1 < bf16.size(); i += 2) {
    std::uint16_t bits;
    std::memcpy(&bits, bf16.data() + i, 2);
    const float value = to_float(Bf16{bits});
    if (dtype == "F32") {
      out.append(reinterpret_cast<const char*>(&value), 4);
    } else if (dtype == "F16") {
      std::uint16_t half = 0;  // found among all of them: slow and plainly right
      while (half_to_float(half) != value) ++half;
      out.append(reinterpret_cast<const char*>(&half), 2);
    } else if (dtype == "I8" || dtype == "U8") {
      out.push_back(0);
    } else if (dtype == "F64" || dtype == "I64") {
      out.append(8, '\0');
    } else {
      throw std::runtime_error("retype: cannot make " + dtype);
    }
  }
  return out;
}

void edit_tensor(std::vector<RawTensor>& tensors, const Json& edit) {
  expect_keys(edit,
              {"drop", "rename", "to", "add", "shape", "reshape", "retype", "dtype", "fill", "value", "copy", "first"},
              "tensors");
  const auto find = [&](const char* key) {
    const auto it =
        std::find_if(tensors.begin(), tensors.end(), [&](const RawTensor& t) { return t.name == edit.at(key); });
    if (it == tensors.end()) throw std::runtime_error("tensors: there is no " + edit.at(key).dump());
    return it;
  };
  if (edit.contains("drop")) {
    tensors.erase(find("drop"));
  } else if (edit.contains("rename")) {
    find("rename")->name = edit.at("to");
  } else if (edit.contains("copy")) {
    RawTensor copy = *find("copy");
    copy.name = edit.at("to");
    tensors.push_back(std::move(copy));
  } else if (edit.contains("first")) {
    std::rotate(tensors.begin(), find("first"), tensors.end());
  } else if (edit.contains("add")) {
    const auto shape = edit.at("shape").get<std::vector<std::uint64_t>>();
    tensors.push_back({edit.at("add"), "BF16", shape, formula_tensor(edit.at("add"), elements(shape))});
  } else if (edit.contains("reshape")) {
    const auto it = find("reshape");
    it->shape = edit.at("shape").get<std::vector<std::uint64_t>>();
    it->data = formula_tensor(it->name, elements(it->shape));
  } else if (edit.contains("retype")) {
    const auto it = find("retype");
    it->dtype = edit.at("dtype");
    it->data = converted(it->data, it->dtype);
  } else if (edit.contains("fill")) {
    const float value =
        edit.at("value").is_string() ? std::numeric_limits<float>::quiet_NaN() : edit.at("value").get<float>();
    const std::uint16_t bits = to_bf16(value).bits;
    std::string& data = find("fill")->data;
    for (std::size_t i = 0; i + 1 < data.size(); i += 2) std::memcpy(data.data() + i, &bits, 2);
  } else {
    throw std::runtime_error("tensors: no edit in " + edit.dump());
  }
}

// `count` files of about equally many tensors, and the index that names them.
void write_shards(const fs::path& dir, const std::vector<RawTensor>& tensors, std::size_t count) {
  Json map = Json::object();
  std::uint64_t total = 0;
  for (std::size_t shard = 0; shard < count; ++shard) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", shard + 1, count);
    std::vector<RawTensor> part;
    for (std::size_t i = shard; i < tensors.size(); i += count) {
      part.push_back(tensors[i]);
      map[tensors[i].name] = name;
      total += tensors[i].data.size();
    }
    write_file(dir / name, safetensors_bytes(part));
  }
  write_file(dir / "model.safetensors.index.json",
             Json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump());
}

void edit_bytes(const fs::path& dir, const Json& edit) {
  expect_keys(edit, {"file", "cut", "append", "at", "set"}, "bytes");
  const fs::path path = dir / edit.value("file", kWeights);
  std::string bytes = read_file(path);
  if (edit.contains("cut")) bytes.resize(bytes.size() - edit.at("cut").get<std::size_t>());
  if (edit.contains("append")) bytes += from_hex(edit.at("append"));
  if (edit.contains("set")) {
    const std::string set = from_hex(edit.at("set"));
    bytes.replace(edit.value("at", std::size_t{0}), set.size(), set);
  }
  write_file(path, bytes);
}

// A weights file given by its header's text: 8 bytes of length, the text, `data` zero bytes.
std::string with_header(const Json& description) {
  expect_keys(description, {"header", "length", "data"}, "weights");
  const std::string header = bytes_of(description.at("header"));
  const std::uint64_t length = description.value("length", static_cast<std::uint64_t>(header.size()));
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i) & 0xFF);
  return bytes + header + std::string(description.value("data", std::size_t{0}), '\0');
}

void write_value(const fs::path& path, const Json& value) {
  fs::create_directories(path.parent_path());
  write_file(path, bytes_of(value));
}

}  // namespace

void make_case_model(const fs::path& dir, const Json& model) {
  expect_keys(model,
              {"shipped", "formula", "config", "tensors", "shards", "tokenizer", "files", "remove", "edit", "bytes",
               "weights", "links", "fifo", "folder"},
              "model");
  if (model.contains("shipped")) {
    fs::copy(shipped_model(model.at("shipped")), dir);
  } else if (model.contains("formula")) {
    const Json config = tiny_config(model.at("formula"), model.value("config", Json::object()));
    std::vector<RawTensor> tensors = formula_tensors(config);
    for (const Json& edit : model.value("tensors", Json::array())) edit_tensor(tensors, edit);
    write_file(dir / "config.json", config.dump(2));
    if (const auto shards = model.value("shards", std::size_t{0})) {
      write_shards(dir, tensors, shards);
    } else {
      write_file(dir / kWeights, safetensors_bytes(tensors));
    }
  }
  if (model.value("tokenizer", "") == "tiny") {
    write_file(dir / "tokenizer.json", tiny_tokenizer_json());
    write_file(dir / "tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  }
  // Named: items() of a temporary would outlive it.
  const Json files = model.value("files", Json::object()), patches = model.value("edit", Json::object()),
             links = model.value("links", Json::object());
  for (const auto& [name, value] : files.items()) write_value(dir / name, value);
  for (const Json& name : model.value("remove", Json::array())) {
    if (fs::remove_all(dir / name.get<std::string>()) == 0)
      throw std::runtime_error("remove: there is no " + name.dump());
  }
  for (const auto& [name, patch] : patches.items()) {
    write_file(dir / name, Json::parse(read_file(dir / name)).patch(patch).dump());
  }
  if (model.contains("weights")) write_file(dir / kWeights, with_header(model.at("weights")));
  for (const Json& edit : model.value("bytes", Json::array())) edit_bytes(dir, edit);
  for (const auto& [name, target] : links.items()) {
    fs::create_symlink(target.get<std::string>(), dir / name);
  }
  if (model.contains("fifo")) ::mkfifo((dir / model.at("fifo").get<std::string>()).c_str(), 0600);
  if (model.contains("folder")) fs::create_directory(dir / model.at("folder").get<std::string>());
}

}  // namespace glyd::test
