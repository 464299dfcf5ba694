// What ranks ask of the coordinator beside their streams, over a real server.
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "common/errors.h"
#include "common/grpc_channel.h"
#include "common/grpc_status.h"
#include "coordinator/services_test_fixture.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST_F(ServicesTest, ModulesAreAnnouncedAndRefusedOverTheWire) {
  v1::CreateJobRequest built = CreateRequest("built", 1);
  built.mutable_spec()->clear_model();
  built.mutable_spec()->mutable_model()->set_built(true);
  built.mutable_spec()->set_workload("attached");
  ASSERT_TRUE(Create(built).ok());
  v1::AttendRequest host = HostJoin("built", 1);
  host.mutable_join_host()->set_program("/bin/trainer");
  Stream agent(members_.get(), host);
  EXPECT_TRUE(agent.Read().has_welcome());
  const v1::FormHost draft = agent.Read().form_host();
  EXPECT_TRUE(draft.draft());
  Stream rank(members_.get(), RankJoin(draft.assignments(0)));
  EXPECT_TRUE(rank.Read().has_welcome());

  v1::AnnounceModuleRequest request;
  const auto announce = [&](v1::AnnounceModuleResponse* response) {
    grpc::ClientContext context;
    return FromGrpcStatus(members_->AnnounceModule(&context, request, response));
  };
  v1::AnnounceModuleResponse response;
  EXPECT_EQ(Field(announce(&response)), "job");
  request.set_job("built");
  request.set_generation(1);
  EXPECT_EQ(Reason(announce(&response)), "STALE_GENERATION");
  request.set_incarnation("i0");
  v1::Parameter* weight = request.mutable_announcement()->mutable_module()->add_parameters();
  weight->set_name("w");
  weight->set_dtype("float32");
  EXPECT_EQ(Field(announce(&response)), "w");
  weight->add_shape(8);
  ASSERT_TRUE(announce(&response).ok());
  EXPECT_EQ(response.units(0).parameters(0).fqn(), "w");
  EXPECT_FALSE(agent.Read().form_host().draft());
  grpc::ClientContext context;
  v1::ChangeModelDTypeRequest change;
  change.set_job("built");
  change.set_generation(1);
  change.set_incarnation("i0");
  change.set_number(1);
  change.set_dtype("bfloat16");
  v1::ChangeModelDTypeResponse changed;
  EXPECT_EQ(Reason(FromGrpcStatus(members_->ChangeModelDType(&context, change, &changed))),
            "PLAN_SEALED");
}

// Streams are read as bytes.
TEST_F(ServicesTest, AStreamOfSomethingElseIsRefused) {
  struct Reactor : grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
    void OnDone(const grpc::Status& ended) override { status.set_value(ended); }
    std::promise<grpc::Status> status;
  };
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  Reactor reactor;
  stub.PrepareBidiStreamingCall(&context, "/tessera.v1.MembershipService/Attend", {}, &reactor);
  const grpc::Slice bytes("\xff\xff\xff");
  const grpc::ByteBuffer message(&bytes, 1);
  reactor.StartWrite(&message);
  reactor.StartCall();
  const absl::Status status = FromGrpcStatus(reactor.status.get_future().get());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(status.message(), "the message is no AttendRequest");
}

// Job "gpt" with two ranks that have joined as "i0" and "i1", and nothing but timeouts.collective
// that ends soon.
class RendezvousServiceTest : public ServicesTest {
 protected:
  RendezvousServiceTest() {
    v1::CreateJobRequest request = CreateRequest("gpt", 2);
    v1::TimeoutSpec* timeouts = request.mutable_spec()->mutable_timeouts();
    timeouts->mutable_collective()->set_seconds(1);
    timeouts->mutable_lease()->set_seconds(100'000);
    timeouts->mutable_form()->set_seconds(100'000);
    EXPECT_TRUE(Create(request).ok());
    streams_.push_back(std::make_unique<Stream>(members_.get(), HostJoin("gpt", 2)));
    streams_[0]->Read();
    const v1::FormHost form = streams_[0]->Read().form_host();
    for (const v1::Assignment& assignment : form.assignments()) {
      streams_.push_back(std::make_unique<Stream>(members_.get(), RankJoin(assignment)));
      streams_.back()->Read();
    }
  }

  absl::Status Publish(const std::string& unshard_id, const std::string& incarnation = "i0") {
    grpc::ClientContext context;
    v1::PublishCommunicatorIdsRequest request;
    request.set_job("gpt");
    request.set_generation(1);
    request.set_incarnation(incarnation);
    request.mutable_ids()->set_unshard_id(unshard_id);
    request.mutable_ids()->set_reduce_id("reduce");
    v1::PublishCommunicatorIdsResponse response;
    return FromGrpcStatus(members_->PublishCommunicatorIds(&context, request, &response));
  }
  // Of rank 1.
  absl::StatusOr<v1::CommunicatorIds> Fetch(grpc::ClientContext* context,
                                            const std::string& job = "gpt") {
    v1::FetchCommunicatorIdsRequest request;
    request.set_job(job);
    request.set_generation(1);
    request.set_rank(1);
    request.set_incarnation("i1");
    v1::FetchCommunicatorIdsResponse response;
    const absl::Status status =
        FromGrpcStatus(members_->FetchCommunicatorIds(context, request, &response));
    if (!status.ok()) return status;
    return response.ids();
  }

  std::vector<std::unique_ptr<Stream>> streams_;
};

TEST_F(RendezvousServiceTest, IdsOfAnyBytesCrossTheWire) {
  const std::string id("\0\xff\x80 id", 6);
  auto waiting = std::async(std::launch::async, [&] {
    grpc::ClientContext context;
    return Fetch(&context);
  });
  ASSERT_TRUE(Publish(id).ok());
  const absl::StatusOr<v1::CommunicatorIds> ids = waiting.get();
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(ids->unshard_id(), id);
  EXPECT_EQ(ids->reduce_id(), "reduce");
}

TEST_F(RendezvousServiceTest, RefusalsKeepTheirReasonAndField) {
  EXPECT_EQ(Reason(Publish("id", "another process")), "STALE_GENERATION");
  EXPECT_EQ(Field(Publish("")), "ids.unshard_id");
  ASSERT_TRUE(Publish("id").ok());
  EXPECT_EQ(Reason(Publish("other")), "IDS_PUBLISHED");
  grpc::ClientContext nameless, unknown;
  EXPECT_EQ(Field(Fetch(&nameless, "").status()), "job");
  EXPECT_EQ(Fetch(&unknown, "none").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RendezvousServiceTest, AWaitEndsWithItsCallItsDeadlineOrTheGeneration) {
  grpc::ClientContext cancelled;
  auto first = std::async(std::launch::async, [&] { return Fetch(&cancelled); });
  cancelled.TryCancel();
  EXPECT_EQ(first.get().status().code(), absl::StatusCode::kCancelled);

  grpc::ClientContext late;
  auto second = std::async(std::launch::async, [&] { return Fetch(&late); });
  while (second.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    clock_.Advance(absl::Milliseconds(900));  // less than a pause of the coordinator's own
    coordinator_.Tick();
  }
  EXPECT_EQ(second.get().status().code(), absl::StatusCode::kDeadlineExceeded);

  grpc::ClientContext ended;
  auto third = std::async(std::launch::async, [&] { return Fetch(&ended); });
  ASSERT_TRUE(coordinator_.CancelJob("gpt", "enough").ok());
  // It came before the end or after.
  const absl::Status status = third.get().status();
  EXPECT_TRUE(Reason(status) == "GENERATION_ENDED" || Reason(status) == "STALE_GENERATION")
      << status;
}

}  // namespace
}  // namespace tessera
