#include "worker/fault_points.h"

#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/control_file.h"

namespace tessera {
namespace {

void LeakPage() {
  const int fd = memfd_create("tessera-leak", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, kPageBytes) != 0) return;
  mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
}

// What a slow disk does to one operation.
void Dawdle() {
  const timespec time = {.tv_sec = 0, .tv_nsec = 300'000'000};
  nanosleep(&time, nullptr);
}

void Act(const std::string& action) {
  if (action == "slow") Dawdle();
  if (action == "kill") kill(getpid(), SIGKILL);
  if (action == "stop") kill(getpid(), SIGSTOP);
  if (action == "leak") LeakPage();
}

}  // namespace

absl::StatusOr<FaultPoints> FaultPoints::Parse(absl::string_view text, int rank,
                                               int64_t generation) {
  FaultPoints all;
  if (text.empty()) return all;
  for (const absl::string_view part : absl::StrSplit(text, ';')) {
    absl::StatusOr<FaultPoints> one = ParseOne(part, rank, generation);
    if (!one.ok()) return one;
    if (!one->spoil_point_.empty()) {
      all.spoil_point_ = one->spoil_point_;
      all.spoil_step_ = one->spoil_step_;
    }
    if (all.hook_ && one->hook_) {
      all.hook_ = [first = std::move(all.hook_), second = std::move(one->hook_)](
                      absl::string_view at, int64_t step) {
        first(at, step);
        second(at, step);
      };
    } else if (one->hook_) {
      all.hook_ = std::move(one->hook_);
    }
  }
  return all;
}

absl::StatusOr<FaultPoints> FaultPoints::ParseOne(absl::string_view text, int rank,
                                                  int64_t generation) {
  std::map<std::string, std::string> fields;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<std::string> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (pair.size() != 2)
      return absl::InvalidArgumentError(
          absl::StrCat("TESSERA_TEST_FAULT: \"", part, "\" is not key=value"));
    fields[pair[0]] = pair[1];
  }
  int64_t wanted_rank = 0, wanted_step = 0;
  const std::string point = fields["point"], action = fields["action"];
  if (!absl::SimpleAtoi(fields["rank"], &wanted_rank) || point.empty() ||
      (action != "kill" && action != "stop" && action != "leak" && action != "spoil" &&
       action != "slow")) {
    return absl::InvalidArgumentError(
        "TESSERA_TEST_FAULT needs rank=N,point=NAME,action=kill|stop|leak|spoil|slow[,step=N]"
        "[,generation=N], and more of it after a ;");
  }
  std::optional<int64_t> only_step;
  if (fields.count("step") > 0) {
    if (!absl::SimpleAtoi(fields["step"], &wanted_step))
      return absl::InvalidArgumentError("TESSERA_TEST_FAULT: step is no number");
    only_step = wanted_step;
  }
  int64_t wanted_generation = 1;
  if (fields.count("generation") > 0 && !absl::SimpleAtoi(fields["generation"], &wanted_generation))
    return absl::InvalidArgumentError("TESSERA_TEST_FAULT: generation is no number");
  if (wanted_rank != rank || wanted_generation != generation) return FaultPoints();
  if (action == "spoil") {
    FaultPoints faults;
    faults.spoil_point_ = point;
    faults.spoil_step_ = only_step.value_or(0);
    return faults;
  }
  return FaultPoints(
      [point, action, only_step, done = false](absl::string_view at, int64_t step) mutable {
        if (done || at != point || (only_step.has_value() && step != *only_step)) return;
        done = action != "slow";
        Act(action);
      });
}

bool FaultPoints::Spoils(absl::string_view point) {
  if (spoil_point_.empty() || point != spoil_point_) return false;
  if (spoil_step_ != 0 && step_ != spoil_step_) return false;
  spoil_point_.clear();
  return true;
}

}  // namespace tessera
