// Jobs on several hosts: when they form, what each host is told, and who is named when one goes.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/errors.h"
#include "coordinator/coordinator_test_fixture.h"

namespace tessera {
namespace {

class CoordinatorHostsTest : public CoordinatorFixture {
 protected:
  // Four ranks, two on each of two hosts, with a copy of the model on each host.
  static v1::JobSpec TwoHosts(const std::string& name = "gpt", int min_workers = 4,
                              int max_workers = 4) {
    v1::JobSpec spec = Spec(name, min_workers, max_workers);
    spec.mutable_mesh()->set_strategy("hybrid_shard");
    spec.mutable_mesh()->set_local_world_size(2);
    return spec;
  }

  // The job RUNNING on "node-a" (ranks 0 and 1) and "node-b".
  void StartTwoHosts() {
    ASSERT_TRUE(Create(TwoHosts()).ok());
    a_ = JoinHost("node-a", 2, "gpt");
    b_ = JoinHost("node-b", 2, "gpt");
    for (int rank = 0; rank < 4; ++rank) ranks_.push_back(JoinRank("gpt", 1, rank));
    for (const Member& rank : ranks_) Ready(rank);
    ASSERT_EQ(Get("gpt").state(), v1::RUNNING);
  }

  Member a_, b_;
};

TEST_F(CoordinatorHostsTest, AJobFormsOnceAllItsHostsAreThereAndEachIsToldItsOwnPart) {
  ASSERT_TRUE(Create(TwoHosts()).ok());
  EXPECT_EQ(Get("gpt").reason(), "waits for 2 hosts with at least 2 workers each");
  const Member a = JoinHost("node-a", 3, "gpt");
  EXPECT_FALSE(a.sink->form.has_value());
  EXPECT_EQ(Get("gpt").state(), v1::FORMING);
  const Member b = JoinHost("node-b", 2, "gpt");
  const std::vector<Member> hosts = {a, b};
  for (int host = 0; host < 2; ++host) {
    ASSERT_TRUE(hosts[host].sink->form.has_value());
    const v1::FormHost& form = *hosts[host].sink->form;
    EXPECT_EQ(form.generation(), 1);
    EXPECT_EQ(form.host(), host);
    ASSERT_EQ(form.host_names_size(), 2);
    EXPECT_EQ(form.host_names(0), "node-a");
    EXPECT_EQ(form.host_names(1), "node-b");
    ASSERT_EQ(form.assignments_size(), 2);
    ASSERT_EQ(form.rank_forecasts_size(), 2);
    for (int local = 0; local < 2; ++local) {
      const v1::Assignment& assignment = form.assignments(local);
      EXPECT_EQ(assignment.rank(), 2 * host + local);
      EXPECT_EQ(form.rank_forecasts(local).rank(), 2 * host + local);
      EXPECT_EQ(assignment.world_size(), 4);
      EXPECT_EQ(assignment.shard_index(), local);
      EXPECT_EQ(assignment.replica_index(), host);
      EXPECT_EQ(assignment.local_rank_start(), 2 * host);
      EXPECT_EQ(assignment.local_world_size(), 2);
    }
    EXPECT_EQ(form.host_forecast().host(), host);
    EXPECT_EQ(form.host_forecast().ranks(), 2);
    EXPECT_EQ(form.layout().shard_count(), 2);
    EXPECT_EQ(form.layout().replica_count(), 2);
  }
  EXPECT_EQ(Get("gpt").reason(), "hosts node-a, node-b start 4 workers");
}

TEST_F(CoordinatorHostsTest, AJobOnTwoHostsRunsToItsLastRank) {
  StartTwoHosts();
  v1::ListWorkersRequest request;
  request.set_job("gpt");
  const auto workers = coordinator_.ListWorkers(request);
  ASSERT_EQ(workers->workers_size(), 4);
  EXPECT_EQ(workers->workers(1).host_name(), "node-a");
  EXPECT_EQ(workers->workers(2).host_name(), "node-b");
  EXPECT_EQ(workers->workers(2).host(), 1);
  for (const Member& rank : ranks_) {
    EXPECT_EQ(rank.sink->starts, 1);
    Leave(rank);
  }
  EXPECT_EQ(Get("gpt").state(), v1::SUCCEEDED);
  EXPECT_EQ(a_.sink->end->state(), v1::SUCCEEDED);
  EXPECT_EQ(b_.sink->end->state(), v1::SUCCEEDED);
}

TEST_F(CoordinatorHostsTest, TheTimeToFormNamesTheHostsThatAreMissing) {
  ASSERT_TRUE(Create(TwoHosts()).ok());
  const Member a = JoinHost("node-a", 2, "gpt");
  const Member small = JoinHost("node-b", 1, "gpt");
  Pass(absl::Seconds(61), {a, small});
  EXPECT_EQ(Get("gpt").state(), v1::FAILED);
  EXPECT_EQ(Get("gpt").reason_code(), "DEADLINE_EXCEEDED");
  EXPECT_EQ(Get("gpt").reason(),
            "1 of 2 hosts with 2 workers joined (host node-b offers 1) after 1m; start "
            "tessera-worker --job=gpt --local_workers=2 on each host in time, or raise "
            "timeouts.form");
  EXPECT_EQ(a.sink->end->state(), v1::FAILED);
  EXPECT_EQ(small.sink->end->state(), v1::FAILED);
}

TEST_F(CoordinatorHostsTest, TheTimeToFormNamesTheRanksThatAreMissingAndTheirHost) {
  ASSERT_TRUE(Create(TwoHosts()).ok());
  const Member a = JoinHost("node-a", 2, "gpt");
  const Member b = JoinHost("node-b", 2, "gpt");
  const std::vector<Member> all = {a, b, JoinRank("gpt", 1, 0), JoinRank("gpt", 1, 1)};
  Pass(absl::Seconds(61), all);
  EXPECT_EQ(Get("gpt").reason(),
            "2 of 4 workers joined; ranks 2-3 are missing after 1m on host node-b");
}

TEST_F(CoordinatorHostsTest, AHostTooManyIsRefused) {
  StartTwoHosts();
  absl::Status status;
  JoinHost("node-c", 2, "gpt", &status);
  EXPECT_EQ(Reason(status), "SECOND_HOST");
  EXPECT_EQ(status.message(),
            "job gpt is on host node-a and has all its hosts; there is no place for host node-c");
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);

  // Three that came before their job.
  std::vector<Member> early;
  for (const char* host : {"x", "y", "z"}) early.push_back(JoinHost(host, 2, "later"));
  ASSERT_TRUE(Create(TwoHosts("later")).ok());
  EXPECT_TRUE(early[0].sink->form.has_value());
  EXPECT_TRUE(early[1].sink->form.has_value());
  EXPECT_FALSE(early[2].sink->form.has_value());
  EXPECT_EQ(Reason(*early[2].sink->closed), "SECOND_HOST");
}

TEST_F(CoordinatorHostsTest, ThePoolGivesItsOldestHostsThatAreLargeEnough) {
  const Member small = JoinHost("small", 1, "");
  const Member a = JoinHost("node-a", 2, "");
  ASSERT_TRUE(Create(TwoHosts()).ok());
  EXPECT_FALSE(a.sink->form.has_value());
  const Member b = JoinHost("node-b", 4, "");
  EXPECT_EQ(a.sink->form->host(), 0);
  EXPECT_EQ(b.sink->form->host(), 1);
  EXPECT_EQ(b.sink->form->assignments_size(), 2);
  EXPECT_FALSE(small.sink->form.has_value());
}

TEST_F(CoordinatorHostsTest, AJobTakesAsManyHostsAsThereAreWithinItsBounds) {
  const Member a = JoinHost("node-a", 2, "");
  const Member b = JoinHost("node-b", 2, "");
  ASSERT_TRUE(Create(TwoHosts("gpt", 2, 6)).ok());
  EXPECT_EQ(Get("gpt").world_size(), 4);  // planned again: it was for 6
  EXPECT_EQ(b.sink->form->layout().world_size(), 4);
  EXPECT_EQ(b.sink->form->layout().replica_count(), 2);
}

TEST_F(CoordinatorHostsTest, AHostThatGoesBeforeTheOthersComeIsWaitedForAgain) {
  ASSERT_TRUE(Create(TwoHosts()).ok());
  const Member a = JoinHost("node-a", 2, "gpt");
  coordinator_.StreamBroken(a.id);
  const Member b = JoinHost("node-b", 2, "gpt");
  EXPECT_FALSE(b.sink->form.has_value());
  EXPECT_EQ(Get("gpt").state(), v1::FORMING);
  JoinHost("node-a", 2, "gpt");
  EXPECT_EQ(b.sink->form->host(), 0);
}

TEST_F(CoordinatorHostsTest, AHostThatIsLostEndsTheGenerationAndIsNamed) {
  StartTwoHosts();
  // Whatever the other host's ranks say of it first.
  Leave(ranks_[0], absl::StatusCode::kUnavailable, "the connection to host node-b is gone", 2);
  coordinator_.StreamBroken(b_.id);
  EXPECT_EQ(Get("gpt").state(), v1::FAILED);
  EXPECT_EQ(Get("gpt").reason(), "host node-b is lost: its agent (pid 7) is gone");
  EXPECT_EQ(a_.sink->end->state(), v1::FAILED);
  EXPECT_TRUE(ranks_[1].sink->end.has_value());
}

TEST_F(CoordinatorHostsTest, ASilentHostIsBlamedAndNotItsSilentRanksNorTheOtherHost) {
  StartTwoHosts();
  Pass(absl::Seconds(1), {b_});
  Pass(absl::Seconds(6), {a_, ranks_[0], ranks_[1]});
  EXPECT_EQ(Get("gpt").state(), v1::FAILED);
  EXPECT_FALSE(Get("gpt").has_failed_rank());
  EXPECT_TRUE(absl::StartsWith(Get("gpt").reason(), "host node-b is lost: its agent (pid 7) was "))
      << Get("gpt").reason();
}

TEST_F(CoordinatorHostsTest, ARankThatIsBlamedIsNamedWithItsOwnHost) {
  StartTwoHosts();
  Leave(ranks_[0], absl::StatusCode::kDeadlineExceeded, "waited 30s; missing: host node-b", 2);
  Pass(absl::Milliseconds(400), {a_, b_, ranks_[1], ranks_[2], ranks_[3]});
  EXPECT_EQ(Get("gpt").reason(),
            "rank 2 on host node-b is to blame, says rank 0: waited 30s; missing: host node-b");
}

TEST_F(CoordinatorHostsTest, AKilledRankIsNamedWithItsHostWhateverTheOthersSay) {
  StartTwoHosts();
  Leave(ranks_[1], absl::StatusCode::kUnavailable, "the connection to rank 3 is gone", 3);
  Leave(ranks_[2], absl::StatusCode::kUnavailable, "rank 3 is gone", 3);
  Leave(ranks_[0], absl::StatusCode::kUnavailable, "the connection to rank 2 is gone", 2);
  coordinator_.StreamBroken(ranks_[3].id);
  WorkerExited(b_, 3, 0, 9);
  Pass(absl::Milliseconds(400), {a_, b_});
  EXPECT_EQ(Get("gpt").reason(), "rank 3 on host node-b was killed by signal 9 (SIGKILL)");
}

TEST_F(CoordinatorHostsTest, RanksOfEqualLocalRankFindEachOther) {
  StartTwoHosts();
  const auto publish = [&](int rank, int group) {
    v1::PublishCommunicatorIdsRequest request;
    request.set_job("gpt");
    request.set_generation(1);
    request.set_rank(rank);
    request.set_incarnation(absl::StrCat("i", rank));
    request.set_group(group);
    request.mutable_ids()->set_host_links(absl::StrCat("links of ", rank));
    return coordinator_.PublishCommunicatorIds(request);
  };
  absl::StatusOr<v1::CommunicatorIds> answer;
  const auto fetch = [&](int rank, int group) {
    v1::FetchCommunicatorIdsRequest request;
    request.set_job("gpt");
    request.set_generation(1);
    request.set_rank(rank);
    request.set_incarnation(absl::StrCat("i", rank));
    request.set_group(group);
    return coordinator_.FetchCommunicatorIds(
        request, [&](const absl::StatusOr<v1::CommunicatorIds>& ids) { answer = ids; });
  };
  // Two shard groups, then a group for each rank.
  ASSERT_TRUE(fetch(3, 2 + 1).ok());
  ASSERT_TRUE(publish(1, 2 + 1).ok());
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->host_links(), "links of 1");
  ASSERT_TRUE(publish(3, 2 + 3).ok());
  ASSERT_TRUE(fetch(1, 2 + 3).ok());
  EXPECT_EQ(answer->host_links(), "links of 3");
  EXPECT_EQ(Field(fetch(2, 2 + 3)), "rank");
  EXPECT_EQ(Field(publish(1, 2 + 3)), "rank");
  EXPECT_EQ(Field(publish(1, 6)), "group");
}

TEST_F(CoordinatorHostsTest, RefusesWhatHostsCannotRunByField) {
  v1::JobSpec spec = TwoHosts();
  spec.mutable_mesh()->set_strategy("full_shard");
  absl::Status status = Create(spec).status();
  EXPECT_EQ(Field(status), "mesh.local_world_size");
  EXPECT_TRUE(absl::StrContains(status.message(), "shard groups of 4 over several hosts"))
      << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "mesh.replicas 2")) << status;
  spec.mutable_mesh()->set_replicas(2);
  EXPECT_TRUE(Create(spec).ok());

  spec = TwoHosts("cuda");
  spec.mutable_mesh()->set_strategy("full_shard");
  spec.mutable_mesh()->set_local_world_size(2);
  spec.set_workload("attached");
  spec.set_device("cuda");
  EXPECT_EQ(Field(Create(spec).status()), "mesh.local_world_size");

  spec = TwoHosts("odd", 3, 3);
  spec.mutable_mesh()->set_strategy("no_shard");
  status = Create(spec).status();
  EXPECT_EQ(Field(status), "mesh.local_world_size");
  EXPECT_TRUE(absl::StrContains(status.message(), "from 3 to 3 gives every host as many"))
      << status;
}

}  // namespace
}  // namespace tessera
