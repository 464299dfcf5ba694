// Ranks that are threads over one set of buffers, some of which die: at a fault point the thread
// stands still for ever, as a killed process does, and another takes over its memory file. The
// others see it gone as they see a process: by a descriptor that becomes readable. What an agent
// and a coordinator do in between (new control file, every rank joins again) is done here.
//
//   const std::vector<absl::Status> statuses =
//       RunMortalRanks(job, /*world_size=*/2, {{.rank = 1, .point = "reduce", .step = 3}}, body);
//
// The body runs anew on a rank that takes over.
#ifndef TESSERA_TESTS_FAKES_MORTAL_RANKS_H_
#define TESSERA_TESTS_FAKES_MORTAL_RANKS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tessera/v1/job.pb.h"
#include "worker/membership_client.h"
#include "worker/session.h"

namespace tessera {

struct Death {
  int rank = 0;
  std::string point;       // worker/fault_points.h; of the thread that writes checkpoints, too
  int64_t step = 0;        // 0: any
  int passage = 1;         // of the point in that step
  int64_t generation = 1;  // in which it is to happen
};

struct MortalOptions {
  int* died = nullptr;  // set to how many deaths there were
  // Makes a rank's line to a coordinator, for each generation; none: null.
  std::function<std::unique_ptr<MembershipClient>(int rank)> membership = nullptr;
};

// Every rank's status, in rank order. Threads of the dead, and their memory, stay until the process
// ends.
std::vector<absl::Status> RunMortalRanks(const v1::JobSpec& job, int world_size,
                                         const std::vector<Death>& deaths,
                                         std::function<absl::Status(Session&)> body,
                                         MortalOptions options = {});

}  // namespace tessera

#endif  // TESSERA_TESTS_FAKES_MORTAL_RANKS_H_
