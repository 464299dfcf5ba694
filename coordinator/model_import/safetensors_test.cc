#include "coordinator/model_import/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/model_spec.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A file with `header` and `data_bytes` after it.
SafetensorsFile File(std::string name, std::string header, int64_t data_bytes) {
  const auto bytes = static_cast<int64_t>(header.size());
  return {.name = std::move(name),
          .header = std::move(header),
          .file_bytes = kSafetensorsLengthBytes + bytes + data_bytes};
}

std::string Length(uint64_t bytes) {
  std::string text;
  for (int i = 0; i < 8; ++i) text.push_back(static_cast<char>(bytes >> (8 * i)));
  return text;
}

std::string Tensor(absl::string_view name, absl::string_view dtype, absl::string_view shape,
                   int64_t begin, int64_t end) {
  return absl::StrCat("\"", name, R"(":{"dtype":")", dtype, R"(","shape":)", shape,
                      R"(,"data_offsets":[)", begin, ",", end, "]}");
}

absl::StatusOr<v1::ModelSpec> Read(const std::string& header, int64_t data_bytes) {
  return ModelFromSafetensors({File("m.safetensors", header, data_bytes)}, nullptr, "m");
}

std::string MessageOf(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(status.message().find('\n'), absl::string_view::npos) << status;
  EXPECT_LT(status.message().size(), 600) << status;
  return std::string(status.message());
}

std::string ErrorOf(const std::string& header, int64_t data_bytes = 0) {
  return MessageOf(Read(header, data_bytes).status());
}

// Every parameter as "fqn shape dtype", in order.
std::vector<std::string> Parameters(const v1::ModelSpec& spec) {
  const auto index = ModelIndex::Create(spec);
  EXPECT_TRUE(index.ok()) << index.status();
  std::vector<std::string> lines;
  for (const auto& parameter : index->parameters()) {
    lines.push_back(
        absl::StrCat(parameter.fqn, " ", parameter.numel, " ", parameter.spec->dtype()));
  }
  return lines;
}

TEST(SafetensorsTest, NamesBecomeATree) {
  const std::string header = absl::StrCat(
      "{", R"("__metadata__":{"format":"pt"},)", Tensor("h.10.w", "BF16", "[2,3]", 0, 12), ",",
      Tensor("h.9.w", "BF16", "[2,3]", 12, 24), ",", Tensor("h.9.b", "F64", "[1]", 24, 32), ",",
      Tensor("norm.weight", "F32", "[4]", 32, 48), ",", Tensor("ids", "I64", "[1,2]", 48, 64), "}");
  const auto spec = Read(header, 64);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(Parameters(*spec), ElementsAre("h.9.b 1 float64", "h.9.w 6 bfloat16",
                                             "h.10.w 6 bfloat16", "norm.weight 4 float32"));
  EXPECT_EQ(spec->name(), "m");
  EXPECT_EQ(spec->root().class_name(), "Module");
  EXPECT_EQ(spec->root().children(0).class_name(), "ModuleList");
  EXPECT_EQ(spec->root().children(0).children(0).class_name(), "Module");
  ASSERT_EQ(spec->root().buffers_size(), 1);
  EXPECT_EQ(spec->root().buffers(0).name(), "ids");
  EXPECT_EQ(spec->root().buffers(0).dtype(), "int64");
}

TEST(SafetensorsTest, EachDTypeIsKnown) {
  struct Row {
    const char* code;
    int64_t bytes;
    const char* name;
  };
  for (const Row& row : {Row{"F64", 8, "float64"}, Row{"F32", 4, "float32"},
                         Row{"F16", 2, "float16"}, Row{"BF16", 2, "bfloat16"}}) {
    const auto spec =
        Read(absl::StrCat("{", Tensor("w", row.code, "[3]", 0, 3 * row.bytes), "}"), 3 * row.bytes);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->root().parameters(0).dtype(), row.name);
  }
  for (const Row& row : {Row{"I64", 8, "int64"}, Row{"I32", 4, "int32"}, Row{"I8", 1, "int8"},
                         Row{"U8", 1, "uint8"}, Row{"BOOL", 1, "bool"}}) {
    const auto spec = Read(absl::StrCat("{", Tensor("w", "F32", "[1]", 0, 4), ",",
                                        Tensor("b", row.code, "[3]", 4, 4 + 3 * row.bytes), "}"),
                           4 + 3 * row.bytes);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->root().buffers(0).dtype(), row.name);
  }
  for (const char* code : {"F8_E4M3", "F8_E5M2"}) {
    EXPECT_THAT(ErrorOf(absl::StrCat("{", Tensor("w", code, "[3]", 0, 3), "}"), 3),
                AllOf(StartsWith("m.safetensors, tensor w: has the dtype float8_e"),
                      HasSubstr("cannot be trained")));
  }
  for (const char* code : {"I16", "U16", "U32", "U64", "C64", "f32", ""}) {
    EXPECT_THAT(ErrorOf(absl::StrCat("{", Tensor("w", code, "[1]", 0, 2), "}"), 2),
                AllOf(StartsWith("m.safetensors, tensor w: has the dtype \""),
                      HasSubstr("F64, F32, F16, BF16")));
  }
}

TEST(SafetensorsTest, HeaderMayEndInSpaces) {
  EXPECT_TRUE(Read(absl::StrCat("{", Tensor("w", "F32", "[1]", 0, 4), "}    "), 4).ok());
}

TEST(SafetensorsTest, LengthOfTheHeaderIsHeldAgainstTheFile) {
  const auto bytes = SafetensorsHeaderBytes("m", Length(92), 100);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, 92);
  const auto error = [](uint64_t length, int64_t file_bytes) {
    return MessageOf(SafetensorsHeaderBytes("m", Length(length), file_bytes).status());
  };
  EXPECT_THAT(error(93, 100),
              HasSubstr("m: says that its header has 93 bytes, and the file has 100"));
  EXPECT_THAT(error(0, 100), HasSubstr("has 0 bytes"));
  EXPECT_THAT(error(uint64_t{1} << 63, 100),
              HasSubstr("9223372036854775808 bytes, and the format"));
  EXPECT_THAT(error(~uint64_t{0}, 100), HasSubstr("18446744073709551615 bytes, and the format"));
  EXPECT_THAT(error(100'000'001, int64_t{1} << 40), HasSubstr("the format allows 100000000"));
  EXPECT_TRUE(SafetensorsHeaderBytes("m", Length(100'000'000), int64_t{1} << 40).ok());
  EXPECT_THAT(MessageOf(SafetensorsHeaderBytes("m", "1234567", 7).status()),
              StartsWith("m: has 7 bytes, too few"));
}

TEST(SafetensorsTest, FileThatEndsWithinItsHeaderIsRefused) {
  for (const int64_t file_bytes : {std::numeric_limits<int64_t>::min(), int64_t{0}, int64_t{9}}) {
    const SafetensorsFile file{.name = "m", .header = "{}", .file_bytes = file_bytes};
    EXPECT_THAT(MessageOf(ModelFromSafetensors({file}, nullptr, "m").status()),
                HasSubstr("m: ends within its header"));
  }
  EXPECT_THAT(
      MessageOf(
          SafetensorsHeaderBytes("m", Length(2), std::numeric_limits<int64_t>::min()).status()),
      HasSubstr("m: says that its header has 2 bytes"));
}

TEST(SafetensorsTest, DataHasNoOverlapsHolesOrRest) {
  const auto two = [](int64_t begin, int64_t end) {
    return absl::StrCat("{", Tensor("a", "U8", "[4]", 0, 4), ",",
                        Tensor("b", "U8", absl::StrCat("[", end - begin, "]"), begin, end), "}");
  };
  EXPECT_THAT(ErrorOf(two(3, 7), 7),
              HasSubstr("tensor b: starts at byte 3 of the data, but what is before it ends at 4: "
                        "they overlap"));
  EXPECT_THAT(ErrorOf(two(0, 4), 8), HasSubstr("they overlap"));
  EXPECT_THAT(ErrorOf(two(5, 9), 9), HasSubstr("tensor b: starts at byte 5"));
  EXPECT_THAT(ErrorOf(two(5, 9), 9), HasSubstr("there is a hole"));
  EXPECT_THAT(ErrorOf(two(4, 8), 7),
              HasSubstr("tensor b: ends at byte 8 of the data, which has 7"));
  EXPECT_THAT(ErrorOf(two(4, 8), 9), HasSubstr("m.safetensors: has 9 bytes of data, of which the "
                                               "tensors take 8"));
}

TEST(SafetensorsTest, OffsetsAreTwoAndInOrder) {
  for (const char* offsets : {"[]", "[0]", "[0,4,8]", "[4,0]"}) {
    EXPECT_THAT(
        ErrorOf(absl::StrCat(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":)", offsets, "}}"),
                4),
        HasSubstr("tensor w: has the data_offsets ["));
  }
  EXPECT_THAT(ErrorOf(absl::StrCat(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[)",
                                   std::string(200'000, '1'), ",2]}}")),
              HasSubstr("tensor w: has a header that is not JSON: number overflow"));
}

TEST(SafetensorsTest, ShapeFitsTheData) {
  EXPECT_THAT(ErrorOf(absl::StrCat("{", Tensor("w", "F32", "[3]", 0, 8), "}"), 8),
              HasSubstr("tensor w: has the shape [3] of float32, which is 12 bytes, and its "
                        "data_offsets are 8 bytes apart"));
  // 2^62 elements of 4 bytes, 2^32 x 2^32 elements, and 2^63 elements.
  EXPECT_THAT(ErrorOf(absl::StrCat("{", Tensor("w", "F32", "[4611686018427387904]", 0, 0), "}")),
              HasSubstr("tensor w: has the shape [4611686018427387904] of float32, whose bytes "
                        "overflow"));
  EXPECT_THAT(ErrorOf(absl::StrCat("{", Tensor("w", "U8", "[4294967296,4294967296]", 0, 0), "}")),
              HasSubstr("overflow"));
  EXPECT_THAT(ErrorOf(absl::StrCat("{", Tensor("w", "U8", "[9223372036854775808]", 0, 0), "}")),
              HasSubstr("tensor w: has 9223372036854775808 in its shape"));
  // An extent of 0 does not make up for those that overflow.
  EXPECT_THAT(ErrorOf(absl::StrCat("{", Tensor("w", "U8", "[4294967296,4294967296,0]", 0, 0), "}")),
              HasSubstr("overflow"));
  // 2^63 - 1 elements that the file claims to have.
  SafetensorsFile file = File(
      "m",
      absl::StrCat("{", Tensor("w", "U8", "[9223372036854775807]", 0, 9223372036854775807), "}"),
      0);
  EXPECT_THAT(MessageOf(ModelFromSafetensors({file}, nullptr, "m").status()),
              HasSubstr("m, tensor w: ends at byte 9223372036854775807 of the data"));
}

TEST(SafetensorsTest, ShapesHoldNonNegativeIntegers) {
  for (const char* shape : {"[-1]", "[1.5]", "[1e3]", "[18446744073709551616]", "[\"1\"]", "[null]",
                            "[true]", "[[1]]", "[{}]"}) {
    EXPECT_THAT(ErrorOf(absl::StrCat("{", Tensor("w", "U8", shape, 0, 1), "}"), 1),
                AllOf(StartsWith("m.safetensors, tensor w: has "), HasSubstr(" in its shape")));
  }
  std::string many = "[1";
  for (int i = 0; i < 100'000; ++i) many += ",1";
  EXPECT_THAT(ErrorOf(absl::StrCat("{", Tensor("w", "U8", many + "]", 0, 1), "}"), 1),
              HasSubstr("tensor w: has more than 32 numbers in its shape"));
}

TEST(SafetensorsTest, TensorHasItsKeysOnceAndNoOthers) {
  const auto with = [](absl::string_view members) {
    return absl::StrCat(R"({"w":{)", members, "}}");
  };
  EXPECT_THAT(ErrorOf(with(R"("shape":[1],"data_offsets":[0,4])")), HasSubstr("w: has no dtype"));
  EXPECT_THAT(ErrorOf(with(R"("dtype":"F32","data_offsets":[0,4])")), HasSubstr("has no shape"));
  EXPECT_THAT(ErrorOf(with(R"("dtype":"F32","shape":[1])")), HasSubstr("has no data_offsets"));
  EXPECT_THAT(ErrorOf(with(R"("dtype":"F32","dtype":"F32")")),
              HasSubstr("has the key dtype twice"));
  EXPECT_THAT(ErrorOf(with(R"("stride":[1])")), HasSubstr("has the unknown key \"stride\""));
  EXPECT_THAT(ErrorOf(with(R"("dtype":4)")), HasSubstr("has a number as its dtype, not a string"));
  EXPECT_THAT(ErrorOf(with(R"("shape":"F32")")),
              HasSubstr("has a string as its shape, not a list"));
  EXPECT_THAT(ErrorOf(with(R"("shape":{})")), HasSubstr("has an object as its shape, not a list"));
  EXPECT_THAT(ErrorOf(R"({"w":[1]})"), HasSubstr("tensor w: is a list, not an object"));
  EXPECT_THAT(ErrorOf(R"({"w":"x"})"), HasSubstr("tensor w: is a string, not an object"));
  EXPECT_THAT(ErrorOf(R"({"w":null})"), HasSubstr("tensor w: is null, not an object"));
}

TEST(SafetensorsTest, NamesAreThereOnce) {
  EXPECT_THAT(ErrorOf(absl::StrCat("{", Tensor("w", "U8", "[1]", 0, 1), ",",
                                   Tensor("w", "U8", "[1]", 1, 2), "}"),
                      2),
              HasSubstr("tensor w: is there twice"));
  // The same name, written another way.
  EXPECT_THAT(ErrorOf(absl::StrCat("{", Tensor("w", "U8", "[1]", 0, 1), ",",
                                   Tensor("\\u0077", "U8", "[1]", 1, 2), "}"),
                      2),
              HasSubstr("tensor w: is there twice"));
}

TEST(SafetensorsTest, NameIsATensorsOrAModules) {
  const std::string a = Tensor("a", "F32", "[1]", 0, 4);
  const std::string a_b = Tensor("a.b", "F32", "[1]", 4, 8);
  EXPECT_THAT(ErrorOf(absl::StrCat("{", a, ",", a_b, "}"), 8),
              HasSubstr("tensor a.b: is below the tensor a of m.safetensors"));
  EXPECT_THAT(ErrorOf(absl::StrCat("{", a_b, ",", a, "}"), 8),
              HasSubstr("tensor a: has its name in common with a module"));
}

TEST(SafetensorsTest, NamesAreFqns) {
  for (const char* name : {"", ".", "a..b", ".a", "a."}) {
    EXPECT_THAT(ErrorOf(absl::StrCat("{", Tensor(name, "F32", "[1]", 0, 4), "}"), 4),
                HasSubstr("has an empty part in its name"));
  }
  EXPECT_THAT(ErrorOf(absl::StrCat("{", Tensor("a\\n", "F32", "[1]", 0, 4), "}"), 4),
              HasSubstr("control character"));
}

TEST(SafetensorsTest, DeepNamesAreErrorsAndNotAStackOverflow) {
  std::string name = "a";
  for (int i = 1; i < kMaxModuleDepth; ++i) name += ".a";
  const auto deepest = Read(absl::StrCat("{", Tensor(name, "F32", "[1]", 0, 4), "}"), 4);
  EXPECT_TRUE(deepest.ok()) << deepest.status();
  EXPECT_THAT(ErrorOf(absl::StrCat("{", Tensor(name + ".a", "F32", "[1]", 0, 4), "}"), 4),
              HasSubstr("is nested more than 64 modules deep"));
  std::string million(2'000'001, 'a');
  for (size_t i = 1; i < million.size(); i += 2) million[i] = '.';
  EXPECT_THAT(ErrorOf(absl::StrCat("{", Tensor(million, "F32", "[1]", 0, 4), "}"), 4),
              HasSubstr("is nested more than 64 modules deep"));
}

TEST(SafetensorsTest, MetadataHoldsStrings) {
  const std::string w = Tensor("w", "F32", "[1]", 0, 4);
  EXPECT_TRUE(Read(absl::StrCat("{", w, R"(,"__metadata__":{}})"), 4).ok());
  for (const char* value : {"7", "null", "[]", "{}", "true"}) {
    EXPECT_THAT(ErrorOf(absl::StrCat(R"({"__metadata__":{"a":)", value, "},", w, "}"), 4),
                HasSubstr("tensor __metadata__: has "));
  }
  EXPECT_THAT(ErrorOf(absl::StrCat(R"({"__metadata__":"pt",)", w, "}"), 4),
              HasSubstr("tensor __metadata__: is a string, not an object"));
  EXPECT_THAT(ErrorOf(absl::StrCat(R"({"__metadata__":{},"__metadata__":{},)", w, "}"), 4),
              HasSubstr("is there twice"));
  EXPECT_THAT(ErrorOf(absl::StrCat(R"({"__metadata__":{"a":"1","a":"2"},)", w, "}"), 4),
              HasSubstr("has the key \"a\" twice"));
}

TEST(SafetensorsTest, WhatIsNoHeaderIsRefused) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("does not begin with {"));
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("does not begin with {"));
  EXPECT_THAT(ErrorOf(" {}"), HasSubstr("does not begin with {"));
  EXPECT_THAT(ErrorOf("{"), HasSubstr("m.safetensors: has a header that is not JSON"));
  EXPECT_THAT(ErrorOf("{}x"), HasSubstr("not JSON"));
  EXPECT_THAT(ErrorOf("{\"\xff\":1}"), HasSubstr("not JSON"));
  EXPECT_THAT(ErrorOf(std::string("{\0}", 3)), HasSubstr("not JSON"));
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("m.safetensors: "));
  EXPECT_THAT(ErrorOf("{\"w\":" + std::string(1'000'000, '[')), HasSubstr("tensor w: is a list"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_THAT(ErrorOf(objects), HasSubstr("tensor a: has the unknown key \"a\""));
}

TEST(SafetensorsTest, ScalarsAndEmptyParametersAreRefused) {
  EXPECT_THAT(ErrorOf(absl::StrCat("{", Tensor("w", "F32", "[]", 0, 4), "}"), 4),
              HasSubstr("m.safetensors, tensor w: is a scalar, which cannot be sharded"));
  EXPECT_THAT(ErrorOf(absl::StrCat("{", Tensor("w", "F32", "[2,0]", 0, 0), "}"), 0),
              HasSubstr("m.safetensors, tensor w: has no elements"));
}

TEST(SafetensorsTest, IntegersAloneAreNoModel) {
  EXPECT_THAT(ErrorOf(absl::StrCat("{", Tensor("w", "I64", "[1]", 0, 8), "}"), 8),
              StartsWith("m.safetensors: "));
}

class ShardedTest : public testing::Test {
 protected:
  const SafetensorsFile one_ =
      File("one.safetensors", absl::StrCat("{", Tensor("h.1.w", "F32", "[2]", 0, 8), "}"), 8);
  const SafetensorsFile two_ =
      File("two.safetensors", absl::StrCat("{", Tensor("h.0.w", "F32", "[3]", 0, 12), "}"), 12);

  static SafetensorsIndex Index(const std::string& map) {
    const auto index = ParseSafetensorsIndex(
        absl::StrCat(R"({"metadata":{"total_size":20},"weight_map":)", map, "}"), "m.index.json");
    EXPECT_TRUE(index.ok()) << index.status();
    return *index;
  }
  std::string ErrorOf(const SafetensorsIndex& index) const {
    return MessageOf(ModelFromSafetensors({one_, two_}, &index, "m").status());
  }
};

TEST_F(ShardedTest, ShardsMakeOneTree) {
  const SafetensorsIndex index = Index(R"({"h.1.w":"one.safetensors","h.0.w":"two.safetensors"})");
  EXPECT_THAT(index.Files(), ElementsAre("one.safetensors", "two.safetensors"));
  const auto spec = ModelFromSafetensors({one_, two_}, &index, "m");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(Parameters(*spec), ElementsAre("h.0.w 3 float32", "h.1.w 2 float32"));
}

TEST_F(ShardedTest, IndexAndHeadersAgree) {
  EXPECT_THAT(ErrorOf(Index(R"({"h.1.w":"one.safetensors"})")),
              HasSubstr("two.safetensors, tensor h.0.w: is there, but m.index.json says nothing"));
  EXPECT_THAT(
      ErrorOf(Index(R"({"h.1.w":"two.safetensors","h.0.w":"two.safetensors"})")),
      HasSubstr("one.safetensors, tensor h.1.w: is there, but m.index.json says it is in two"));
  EXPECT_THAT(
      ErrorOf(
          Index(R"({"h.1.w":"one.safetensors","h.0.w":"two.safetensors","x":"one.safetensors"})")),
      HasSubstr("m.index.json, tensor x: should be in one.safetensors and is not there"));
}

TEST_F(ShardedTest, TensorInTwoFilesIsRefused) {
  const SafetensorsFile again = File("again.safetensors", one_.header, 8);
  EXPECT_THAT(MessageOf(ModelFromSafetensors({one_, again}, nullptr, "m").status()),
              HasSubstr("again.safetensors, tensor h.1.w: is also in one.safetensors"));
}

TEST_F(ShardedTest, IndexNamesFilesBesideIt) {
  for (const char* file :
       {"\"../one.safetensors\"", "\"/etc/one.safetensors\"", "\"one.bin\"", "\"\"", "7", "null",
        "[]", "\"a\\u0000.safetensors\"", "\"a\\\\b.safetensors\""}) {
    const auto index =
        ParseSafetensorsIndex(absl::StrCat(R"({"weight_map":{"w":)", file, "}}"), "i.json");
    EXPECT_THAT(MessageOf(index.status()), StartsWith("i.json, tensor w: is in "));
  }
  for (const char* json :
       {"{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":null})"}) {
    EXPECT_THAT(MessageOf(ParseSafetensorsIndex(json, "i.json").status()),
                StartsWith("i.json: weight_map "));
  }
  EXPECT_THAT(
      MessageOf(ParseSafetensorsIndex("{\"a\":" + std::string(1000, '['), "i.json").status()),
      HasSubstr("nested more than 16 levels deep"));
}

}  // namespace
}  // namespace tessera
