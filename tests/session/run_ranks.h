// What tests of sessions share: running a body on every rank of a toy job, and what came of it.
#ifndef TESSERA_TESTS_SESSION_RUN_RANKS_H_
#define TESSERA_TESTS_SESSION_RUN_RANKS_H_

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fakes/thread_ranks.h"
#include "tests/session/toy_model.h"

namespace tessera {

inline std::vector<absl::Status> RunRanks(const v1::JobSpec& job, int world_size,
                                          const std::function<absl::Status(Session&)>& body,
                                          ThreadRanks::Options options = {}) {
  absl::StatusOr<std::unique_ptr<ThreadRanks>> ranks =
      ThreadRanks::Create(job, world_size, std::move(options));
  EXPECT_TRUE(ranks.ok()) << ranks.status();
  if (!ranks.ok()) return {ranks.status()};
  return (*ranks)->Run(body);
}

inline void ExpectOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

// Every rank's error, in one text.
inline std::string Messages(const std::vector<absl::Status>& statuses) {
  std::string all;
  for (const absl::Status& status : statuses) absl::StrAppend(&all, status.message(), "\n");
  return all;
}

struct ToyWorld {
  std::string unshard;
  int ranks;
  std::string strategy = "full_shard";
  int replicas = 1;
};

inline v1::JobSpec ToyJobOf(const ToyWorld& world) {
  v1::JobSpec job = ToyJob(world.unshard);
  job.mutable_mesh()->set_strategy(world.strategy);
  job.mutable_mesh()->set_replicas(world.replicas);
  return job;
}

inline void PrintTo(const ToyWorld& world, std::ostream* out) {
  *out << world.unshard << " " << world.strategy << " " << world.ranks;
}

// Both modes at 1 to 4 ranks, and strategies under which several ranks have the same shards.
inline std::vector<ToyWorld> ToyWorlds() {
  std::vector<ToyWorld> worlds;
  for (const char* unshard : {"slots", "resident"}) {
    for (const int ranks : {1, 2, 3, 4}) worlds.push_back({unshard, ranks});
    worlds.push_back({unshard, 3, "shard_grad_op"});
    worlds.push_back({unshard, 2, "no_shard"});
    worlds.push_back({unshard, 3, "no_shard"});
    worlds.push_back({unshard, 4, "hybrid_shard", 2});
  }
  return worlds;
}

}  // namespace tessera

#endif  // TESSERA_TESTS_SESSION_RUN_RANKS_H_
