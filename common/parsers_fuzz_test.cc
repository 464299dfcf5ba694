// Random and mangled texts: readers answer with INVALID_ARGUMENT or a value, on one line, and never
// crash. The same seeds at each run.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>

#include "common/job_spec.h"
#include "common/model_spec.h"

namespace tessera {
namespace {

constexpr char kModel[] =
    R"({"name":"m","root":{"class_name":"S","parameters":[{"name":"w","shape":[5,5],"dtype":"float32","requires_grad":true,
        "init":{"kind":"normal","std":0.02}}],"children":[{"name":"a","class_name":"L","parameters":[{"name":"v","shape":[5,5],
        "dtype":"fp32","tied_to":"w"}]},{"name":"b","same_as":"a"}]}})";
constexpr char kJob[] =
    R"({"name":"j","model":{"layers":2,"attention":false},"optimizer":{"lr":1e-3,"betas":[0.9,0.95]},"global_batch":"24",
        "mesh":{"min_workers":2},"timeouts":{"lease":"5s"},"wrap":{"policy":"class","wrap_classes":["Block"]}})";
constexpr char kAlphabet[] = "{}[]\",:\\0123456789.-+eEtrufalsn \n\x01\xff\xc3";

void ExpectOneLine(const absl::Status& status) {
  if (status.ok()) return;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(status.message().find('\n'), absl::string_view::npos) << status;
}

void Read(const std::string& text) {
  ExpectOneLine(ParseModelSpec(text, "m").status());
  auto job = ParseJobSpec(text, "j");
  ExpectOneLine(job.status());
  if (!job.ok()) return;
  const auto resolved = ResolveJobSpec(*std::move(job));
  ExpectOneLine(resolved.status());
  if (resolved.ok() && resolved->model().layers() < 100) ExpectOneLine(ModelOf(*resolved).status());
}

class Mangler {
 public:
  explicit Mangler(unsigned seed) : random_(seed) {}
  size_t Below(size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random_); }
  char Letter() { return kAlphabet[Below(sizeof(kAlphabet) - 1)]; }
  std::string Noise() {
    std::string text(Below(64), ' ');
    for (char& c : text) c = Below(4) == 0 ? static_cast<char>(Below(256)) : Letter();
    return text;
  }
  std::string Mangle(std::string text) {
    for (size_t edits = 1 + Below(4); edits > 0 && !text.empty(); --edits) {
      const size_t at = Below(text.size());
      switch (Below(4)) {
        case 0:
          text[at] = Letter();
          break;
        case 1:
          text.erase(at, 1 + Below(8));
          break;
        case 2:
          text.insert(at, 1, Letter());
          break;
        default:
          text.insert(at, text.substr(Below(text.size()), Below(32)));
          break;
      }
    }
    return text;
  }

 private:
  std::mt19937 random_;
};

TEST(ParsersFuzzTest, NoiseIsRefused) {
  Mangler mangler(1);
  for (int i = 0; i < 2'000; ++i) Read(mangler.Noise());
}

TEST(ParsersFuzzTest, MangledFilesAreReadOrRefused) {
  Mangler mangler(2);
  for (int i = 0; i < 4'000; ++i) Read(mangler.Mangle(i % 2 == 0 ? kModel : kJob));
}

TEST(ParsersFuzzTest, MangledSettingsAreTakenOrRefused) {
  const std::pair<const char*, const char*> settings[] = {{"steps", "50"},
                                                          {"optimizer.betas", "[0.9, 0.99]"},
                                                          {"timeouts.lease", "5s"},
                                                          {"wrap", "{\"policy\":\"none\"}"}};
  Mangler mangler(3);
  v1::JobSpec spec;
  for (int i = 0; i < 4'000; ++i) {
    const auto& [path, value] = settings[mangler.Below(4)];
    const bool path_too = mangler.Below(4) == 0;
    ExpectOneLine(SetField(&spec, path_too ? mangler.Mangle(path) : path, mangler.Mangle(value)));
  }
}

}  // namespace
}  // namespace tessera
