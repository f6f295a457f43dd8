#include "io/safetensors.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "base/bf16.h"
#include "base/error.h"
#include "support/errors.h"
#include "support/fixtures.h"

using namespace glyd;
using Catch::Matchers::Contains;
using test::TempDir;

namespace {

std::string length_word(std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(length >> (8 * i) & 0xFF));
  return bytes;
}

// A file with this header and `data` bytes of data behind it.
std::string file_bytes(const std::string& header, std::size_t data) {
  return length_word(header.size()) + header + std::string(data, '\x01');
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

// Opens a file with these bytes; it stays readable after the name is gone.
io::Safetensors open_bytes(const std::string& bytes) {
  const TempDir dir;
  test::write_file(dir.path() / "t.safetensors", bytes);
  return io::Safetensors::open(dir.path() / "t.safetensors");
}

io::Safetensors open_header(const std::string& header, std::size_t data) {
  return open_bytes(file_bytes(header, data));
}

// The message of the error that opening gives; every one names the file. "" when it opens.
std::string refusal(const std::string& bytes) {
  const std::string said = test::error_of(Code::Model, [&] { open_bytes(bytes); });
  if (!said.empty()) CHECK_THAT(said, Contains("t.safetensors: "));
  return said;
}

std::string header_refusal(const std::string& header, std::size_t data) { return refusal(file_bytes(header, data)); }

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::string test_header(const std::string& offsets, const std::string& dtype = "I32",
                        const std::string& shape = "[2,2]") {
  return "{\"test\":" + entry(dtype, shape, offsets) + "}";
}

std::uint16_t u16_at(const io::Safetensors& file, const io::Tensor& tensor, std::uint64_t offset) {
  unsigned char bytes[2];
  file.read(tensor, offset, std::as_writable_bytes(std::span(bytes)));
  return static_cast<std::uint16_t>(bytes[0] | bytes[1] << 8);
}

}  // namespace

TEST_CASE("the specification's 67-byte file reads as [1, -2]", "[io]") {
  const auto file =
      open_bytes(from_hex("37000000000000007b2261223a7b226474797065223a2242463136222c227368617065223a5b325d2c2264617461"
                          "5f6f666673657473223a5b302c"
                          "345d7d7d803f00c0"));
  REQUIRE(file.tensors().size() == 1);
  const io::Tensor* a = file.find("a");
  REQUIRE(a != nullptr);
  CHECK(a->dtype == io::Dtype::BF16);
  CHECK(a->shape == std::vector<std::uint64_t>{2});
  CHECK(file.data_begin() == 63);
  CHECK(to_float(Bf16{u16_at(file, *a, 0)}) == 1.0f);
  CHECK(to_float(Bf16{u16_at(file, *a, 2)}) == -2.0f);
  CHECK(file.header_text() == R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})");
  CHECK(file.find("b") == nullptr);
}

TEST_CASE("valid files of the specification's table open", "[io]") {
  CHECK(open_header("{}", 0).tensors().empty());
  CHECK(open_header(R"({"__metadata__":{"format":"pt"}})", 0).metadata().at("format") == "pt");

  const auto scalar = open_header(R"({"a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}})", 2);
  CHECK(scalar.find("a")->shape.empty());
  const auto empty = open_header(R"({"a":{"dtype":"BF16","shape":[0,5],"data_offsets":[0,0]}})", 0);
  CHECK(empty.find("a")->shape == std::vector<std::uint64_t>{0, 5});
  const auto misaligned = open_header(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                      R"("b":{"dtype":"BF16","shape":[1],"data_offsets":[1,3]}})",
                                      3);
  CHECK(u16_at(misaligned, *misaligned.find("b"), 0) == 0x0101);
  const std::string header = test_header("[0,16]");
  CHECK(header.size() == 60);
  CHECK(open_header(header, 16).find("test")->end == 16);
}

TEST_CASE("invalid files of the specification's table are refused, rule by rule", "[io]") {
  CHECK_THAT(refusal(std::string(7, 'x')), Contains("7 bytes"));                                  // 1
  CHECK_THAT(refusal(""), Contains("0 bytes"));                                                   // 1
  CHECK_THAT(refusal(std::string(8, '\xff')), Contains("18446744073709551615"));                  // 2
  CHECK_THAT(refusal(length_word(100'000'001)), Contains("100000001") && Contains("100000000"));  // 2
  CHECK_THAT(refusal(length_word(0xFFFFFFFFFFFFFFF8)), Contains("18446744073709551608"));         // 2: N + 8 wraps
  CHECK_THAT(refusal(length_word(99'999'999) + std::string(92, ' ')), Contains("99999999") && Contains("92"));  // 3
  CHECK_THAT(header_refusal("\xff", 0), Contains("not UTF-8 at byte 0"));                                       // 4
  CHECK_THAT(header_refusal("{", 0), Contains("not valid JSON"));                                               // 5
  CHECK_THAT(header_refusal("{}x", 0), Contains("not valid JSON") && Contains("byte 2"));                       // 5
  CHECK_THAT(header_refusal("", 0), Contains("header is empty"));                                               // 5
  CHECK_THAT(header_refusal("[]", 0), Contains("a list") && Contains("object"));                                // 5
  CHECK_THAT(header_refusal("   ", 0), Contains("not valid JSON"));                                             // 5
  const std::string a = "\"a\":" + entry("BF16", "[1]", "[0,2]");
  CHECK_THAT(header_refusal("{" + a + "," + a + "}", 2), Contains("'a'") && Contains("given twice"));  // 6
  CHECK_THAT(header_refusal(R"({"a":{"dtype":"BF16","dtype":"F16","shape":[1],"data_offsets":[0,2]}})", 2),
             Contains("'a'") && Contains("'dtype' is given twice"));  // 6
  CHECK_THAT(header_refusal(R"({"__metadata__":{"format":1}})", 0),
             Contains("__metadata__") && Contains("'format'"));                                                    // 7
  CHECK_THAT(header_refusal(test_header("[0,16]", "I33"), 16), Contains("'test'") && Contains("'I33'"));           // 9
  CHECK_THAT(header_refusal(test_header("[4,20]"), 20), Contains("'test'") && Contains("hole"));                   // 10
  CHECK_THAT(header_refusal(test_header("[16,0]"), 16), Contains("'test'") && Contains("end before they begin"));  // 10
  CHECK_THAT(header_refusal(test_header("[0,4]"), 4), Contains("'test'") && Contains("needs 16 bytes"));           // 13
  CHECK_THAT(header_refusal(test_header("[0,16]"), 15),
             Contains("16 bytes") && Contains("15") && Contains("cut short"));  // 14
  CHECK_THAT(header_refusal(test_header("[0,16]"), 17),
             Contains("17") && Contains("goes on after the last tensor"));  // 14
  CHECK_THAT(header_refusal("{}", 1), Contains("goes on after"));           // 14
}

TEST_CASE("entries must have the three fields with the right types", "[io]") {
  for (const char* bad : {"[-1,16]", "[0,16.0]", "[0,1e3]", "[0,18446744073709551616]", "[\"0\",16]", "[0]",
                          "[0,16,16]", "null", "\"0\"", "{}", "[false,true]", "[0,null]", "[[0],16]", "16", "[]"}) {
    INFO(bad);
    CHECK_THAT(header_refusal(test_header(bad), 16), Contains("'test'") && Contains("data_offsets"));
  }
  for (const char* bad : {"[-2,2]", "[2.0,2]", "2", "null", "[\"2\"]", "{}"}) {
    INFO(bad);
    CHECK_THAT(header_refusal(test_header("[0,16]", "I32", bad), 16), Contains("'test'") && Contains("shape"));
  }
  CHECK_THAT(header_refusal(R"({"t":{"shape":[1],"data_offsets":[0,1]}})", 1),
             Contains("'t'") && Contains("dtype is missing"));
  CHECK_THAT(header_refusal(R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1),
             Contains("'t'") && Contains("shape is missing"));
  CHECK_THAT(header_refusal(R"({"t":{"dtype":"U8","shape":[1]}})", 1),
             Contains("'t'") && Contains("data_offsets is missing"));
  CHECK_THAT(header_refusal(R"({"t":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", 1),
             Contains("'t'") && Contains("dtype"));
  for (const char* bad : {"1", "null", "[]", "\"x\"", "true"}) {
    INFO(bad);
    CHECK_THAT(header_refusal("{\"t\":" + std::string(bad) + "}", 0), Contains("'t'") && Contains("an object"));
    CHECK_THAT(header_refusal("{\"__metadata__\":" + std::string(bad) + "}", 0), Contains("__metadata__"));
  }
  // Unknown fields are allowed, whatever they hold, once each.
  CHECK(header_refusal(R"({"t":{"x":[{"y":[null]}],"dtype":"U8","shape":[1],"data_offsets":[0,1],"z":1.5e3}})", 1)
            .empty());
  CHECK_THAT(header_refusal(R"({"t":{"x":1,"x":2,"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
             Contains("'x'"));
  CHECK_THAT(header_refusal(R"({"__metadata__":{},"__metadata__":{}})", 0), Contains("__metadata__ is given twice"));
  CHECK_THAT(header_refusal(R"({"__metadata__":{"a":"1","a":"1"}})", 0), Contains("'a' is given twice"));
}

TEST_CASE("tensors may neither overlap nor leave holes", "[io]") {
  const auto pair = [](const char* first, const char* second) {
    return "{\"a\":" + entry("U8", "[4]", first) + ",\"b\":" + entry("U8", "[4]", second) + "}";
  };
  CHECK(header_refusal(pair("[0,4]", "[4,8]"), 8).empty());
  CHECK(header_refusal(pair("[4,8]", "[0,4]"), 8).empty());  // header order is free
  CHECK_THAT(header_refusal(pair("[0,4]", "[0,4]"), 4), Contains("overlap"));
  CHECK_THAT(header_refusal(pair("[0,4]", "[3,7]"), 7), Contains("'b'") && Contains("overlap"));
  CHECK_THAT(header_refusal(pair("[0,4]", "[5,9]"), 9), Contains("'b'") && Contains("hole"));
  CHECK_THAT(header_refusal(pair("[0,4]", "[1000,1004]"), 8), Contains("'b'") && Contains("outside the file"));
  CHECK_THAT(header_refusal(pair("[9223372036854775808,9223372036854775812]", "[0,4]"), 8),
             Contains("'a'") && Contains("outside"));
  // Empty tensors share a place with their neighbours.
  CHECK(header_refusal("{\"b\":" + entry("U8", "[4]", "[0,4]") + ",\"a\":" + entry("F32", "[0]", "[4,4]") +
                           ",\"c\":" + entry("F32", "[3,0]", "[0,0]") + "}",
                       4)
            .empty());
}

TEST_CASE("sizes are multiplied with care", "[io]") {
  const auto with_shape = [](const char* dtype, const char* shape, const char* offsets, std::size_t data) {
    return header_refusal(test_header(offsets, dtype, shape), data);
  };
  CHECK_THAT(with_shape("U8", "[2,18446744073709551614]", "[0,4]", 4),
             Contains("'test'") && Contains("larger than 2^64"));
  CHECK_THAT(with_shape("U8", "[2,9223372036854775807]", "[0,4]", 4), Contains("larger than 2^64"));
  CHECK_THAT(with_shape("F64", "[4294967296,4294967296]", "[0,0]", 0), Contains("larger than 2^64"));
  CHECK(with_shape("F4", "[2]", "[0,1]", 1).empty());
  CHECK_THAT(with_shape("F4", "[3]", "[0,1]", 1), Contains("12 bits"));
  CHECK_THAT(with_shape("F6_E2M3", "[3]", "[0,2]", 2), Contains("18 bits"));
  CHECK(with_shape("F6_E3M2", "[4]", "[0,3]", 3).empty());
  std::string rank_1000 = "[1";
  for (int i = 1; i < 1000; ++i) rank_1000 += ",1";
  CHECK(with_shape("U8", (rank_1000 + "]").c_str(), "[0,1]", 1).empty());
}

TEST_CASE("every dtype of the format is known with its width", "[io]") {
  const std::pair<const char*, int> dtypes[] = {
      {"BOOL", 8},        {"U8", 8},          {"I8", 8},    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},
      {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F4", 4},    {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"I16", 16},
      {"U16", 16},        {"F16", 16},        {"BF16", 16}, {"I32", 32},    {"U32", 32},    {"F32", 32},
      {"I64", 64},        {"U64", 64},        {"F64", 64},  {"C64", 64}};
  for (const auto& [name, bits] : dtypes) {
    INFO(name);
    const auto file =
        open_header(test_header("[0," + std::to_string(bits) + "]", name, "[8]"), static_cast<std::size_t>(bits));
    CHECK(std::string(io::dtype_name(file.tensors()[0].dtype)) == name);
    CHECK(io::dtype_bits(file.tensors()[0].dtype) == bits);
  }
}

TEST_CASE("names are opaque, and printed safely", "[io]") {
  const auto named = [](const std::string& json_name, const char* offsets = "[0,1]") {
    return "{" + json_name + ":" + entry("U8", "[1]", offsets) + "}";
  };
  CHECK(open_header(named("\"\""), 1).find("") != nullptr);
  CHECK(open_header(named("\"a\\u0000b\""), 1).find(std::string("a\0b", 3)) != nullptr);
  CHECK(open_header(named("\"../x\\n\""), 1).find("../x\n") != nullptr);
  CHECK_THAT(header_refusal(named("\"a\\n\\u001b[31m\"", "[1,2]"), 2), Contains("'a\\n\\x1b[31m'"));
  CHECK_THAT(header_refusal(named("\"\\ud800\""), 1), Contains("surrogate"));
  const std::string message = header_refusal(named("\"" + std::string(1 << 20, 'n') + "\"", "[1,2]"), 2);
  CHECK(message.size() < 600);
}

TEST_CASE("files of other kinds are named for what they are", "[io]") {
  CHECK_THAT(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
             Contains("Git LFS pointer"));
  CHECK_THAT(refusal(std::string("PK\x03\x04\x00\x00\x08\x08rest of it", 18)),
             Contains("zip archive") && Contains("PyTorch"));
  CHECK_THAT(refusal(std::string("GGUF\x03\0\0\0\0\0\0\0", 12)), Contains("GGUF"));
  CHECK_THAT(refusal("<!DOCTYPE html><html></html>"), Contains("web page"));
}

TEST_CASE("only regular files are opened, and a file that shrinks is an error", "[io]") {
  const TempDir dir;
  CHECK_THROWS_WITH(io::Safetensors::open(dir.path()), Contains("directory"));
  CHECK_THROWS_WITH(io::Safetensors::open(dir.path() / "absent"), Contains("absent"));
  REQUIRE(::mkfifo((dir.path() / "fifo").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(io::Safetensors::open(dir.path() / "fifo"), Contains("not a regular file"));
  CHECK_THROWS_WITH(io::Safetensors::open("/dev/zero"), Contains("not a regular file"));

  const std::filesystem::path path = dir.path() / "t.safetensors";
  test::write_file(path, file_bytes(test_header("[0,16]"), 16));
  std::filesystem::create_symlink(path, dir.path() / "link");  // hub caches are made of links
  const auto file = io::Safetensors::open(dir.path() / "link");
  std::filesystem::resize_file(path, 70);
  std::vector<std::byte> out(16);
  CHECK_THROWS_WITH(file.read(file.tensors()[0], 0, out), Contains("cut short"));
}

TEST_CASE("reads stay inside their tensor", "[io]") {
  const auto file =
      open_header("{\"a\":" + entry("U8", "[4]", "[0,4]") + ",\"b\":" + entry("U8", "[4]", "[4,8]") + "}", 8);
  std::vector<std::byte> out(4);
  CHECK_NOTHROW(file.read(*file.find("a"), 0, out));
  CHECK_NOTHROW(file.read(*file.find("a"), 4, std::span(out).first(0)));
  CHECK_THROWS_AS(file.read(*file.find("a"), 1, out), Error);
  CHECK_THROWS_AS(file.read(*file.find("a"), ~std::uint64_t{0}, out), Error);
}
