// Any bytes as a job file: refused on one line, or a job whose defaults are filled in once and for
// all.
#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/job_spec.h"
#include "tests/fuzz/fuzz_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;  // NOLINT(google-build-using-namespace)
  const auto job = ParseJobSpec({reinterpret_cast<const char*>(data), size}, "job.json");
  CheckAnswer(job.status());
  if (!job.ok()) return 0;
  const auto resolved = ResolveJobSpec(*job);
  CheckAnswer(resolved.status());
  if (!resolved.ok()) return 0;
  const auto again = ResolveJobSpec(*resolved);
  CheckThat(again.ok(), "a resolved job can be resolved");
  CheckThat(again->SerializeAsString() == resolved->SerializeAsString(),
            "resolving a resolved job changes nothing");
  return 0;
}
