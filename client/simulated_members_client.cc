#include "client/simulated_members_client.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/attend_wire.h"
#include "client/simulated_member_client.h"
#include "common/clock.h"
#include "common/grpc_channel.h"
#include "common/grpc_status.h"
#include "common/mutex.h"
#include "tessera/v1/plan_service.grpc.pb.h"

namespace tessera {
namespace {

constexpr std::chrono::seconds kCallTimeout(120);
// How finely heartbeats and reports are spread.
constexpr absl::Duration kPace = absl::Milliseconds(10);

using ListUnitsStub = grpc::TemplatedGenericStub<v1::ListUnitsRequest, grpc::ByteBuffer>;

// One connection and what is called over it.
struct Connection {
  explicit Connection(const std::shared_ptr<grpc::Channel>& channel)
      : attend(channel), list_units(channel), report(channel) {}
  AttendStub attend;
  ListUnitsStub list_units;
  grpc::GenericStub report;
};

// Of one rank; its callbacks come one after the other.
struct Rank {
  SimulatedMemberStream* stream = nullptr;
  Connection* connection = nullptr;
  int64_t generation = 0;
  int units = 0;  // listed so far
};

struct ListUnitsCall {
  grpc::ClientContext context;
  v1::ListUnitsRequest request;
  grpc::ByteBuffer response;
};

struct ReportCall {
  grpc::ClientContext context;
  grpc::ByteBuffer request;
  grpc::ByteBuffer response;
};

std::string IncarnationOf(int rank) { return absl::StrCat("rank-", rank); }

// A sample of each unit and operation: what a rank reports after a step.
std::string SerializedSamples(int units) {
  v1::ReportStatsRequest report;
  for (int unit = 0; unit < units; ++unit) {
    for (const v1::Operation operation :
         {v1::UNSHARD, v1::WAIT, v1::REDUCE, v1::REDUCE_WAIT, v1::OPTIMIZER}) {
      v1::OperationSample* sample = report.add_samples();
      sample->set_unit(unit);
      sample->set_operation(operation);
      sample->set_count(2);
      sample->set_bytes(int64_t{800} << 20);
      sample->set_median_us(1234.5);
      sample->set_total_us(2469);
      sample->set_p90_us(1300.25);
      sample->set_p99_us(1301.75);
    }
  }
  return report.SerializeAsString();
}

v1::AttendRequest HeartbeatOf(int64_t step, int unit) {
  v1::AttendRequest request;
  v1::Position* position = request.mutable_heartbeat()->mutable_position();
  position->set_step(step);
  position->set_activity(v1::COMPUTING);
  position->set_unit(unit);
  position->set_sequence(step * 4 * (unit + 1));
  position->mutable_time()->set_nanos(1'000'000);
  return request;
}

v1::AttendResponse Parse(grpc::ByteBuffer& bytes) {
  v1::AttendResponse message;
  grpc::ProtoBufferReader reader(&bytes);
  if (!message.ParseFromZeroCopyStream(&reader)) message.Clear();
  return message;
}

}  // namespace

class SimulatedMembers::Impl {
 public:
  explicit Impl(Options options)
      : options_(std::move(options)),
        samples_(SerializedSamples(options_.units)),
        ranks_(options_.workers) {
    for (int i = 0; i < options_.connections; ++i) {
      connections_.push_back(
          std::make_unique<Connection>(MakeChannel(options_.address, {.own_connection = true})));
    }
    plans_ = v1::PlanService::NewStub(MakeChannel(options_.address, {.own_connection = true}));
  }

  absl::StatusOr<absl::Duration> Form(absl::Time deadline) {
    const absl::Time start = Clock::Real()->Now();
    const int hosts = options_.workers / options_.local_workers;
    for (int host = 0; host < hosts; ++host) StartAgent(host);
    MutexLock lock(mutex_);
    while (started_ < options_.workers && error_.ok()) {
      const absl::Duration left = deadline - Clock::Real()->Now();
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(absl::StrCat(
            joined_.load(), " of ", options_.workers, " simulated ranks joined, ", listed_.load(),
            " listed their units and ", started_.load(), " were told to start in time"));
      }
      changed_.WaitFor(lock, left);
    }
    if (!error_.ok()) return error_;
    return last_start_ - start;
  }

  void BeginSteady() {
    pacer_ = std::jthread([this](const std::stop_token& stop) { Pace(stop); });
  }

  Sent TakeSent() { return {heartbeats_.exchange(0), reports_.exchange(0)}; }

  absl::Status Health() {
    MutexLock lock(mutex_);
    return error_;
  }

  absl::StatusOr<absl::Duration> TimeGetPlan() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
    v1::GetPlanRequest request;
    request.set_job(options_.job);
    v1::GetPlanResponse response;
    const absl::Time start = Clock::Real()->Now();
    const absl::Status status = FromGrpcStatus(plans_->GetPlan(&context, request, &response));
    if (!status.ok()) return status;
    return Clock::Real()->Now() - start;
  }

  void Stop() {
    if (pacer_.joinable()) {
      pacer_.request_stop();
      pacer_.join();
    }
    size_t count = 0;
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      count = streams_.size();
    }
    // None is added any more, and none goes before all have ended.
    for (size_t i = 0; i < count; ++i) streams_[i]->Cancel();
    MutexLock lock(mutex_);
    while (live_ > 0) changed_.Wait(lock);
    streams_.clear();
  }

 private:
  // Streams and calls that have not ended.
  bool Begin() {
    MutexLock lock(mutex_);
    if (!stopping_) ++live_;
    return !stopping_;
  }

  void End(const absl::Status& status, absl::string_view what) {
    MutexLock lock(mutex_);
    if (!stopping_ && error_.ok() && !status.ok()) {
      error_ = absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
    }
    if (--live_ == 0 || !error_.ok()) changed_.NotifyAll();
  }

  void Fail(const std::string& why) {
    MutexLock lock(mutex_);
    if (!stopping_ && error_.ok()) error_ = absl::InternalError(why);
    changed_.NotifyAll();
  }

  SimulatedMemberStream* AddStream(SimulatedMemberStream::OnMessage on_message) {
    auto stream = std::make_unique<SimulatedMemberStream>(
        std::move(on_message), [this](const absl::Status& status) {
          // No stream ends by itself.
          End(status.ok() ? absl::UnavailableError("was ended") : status,
              "the stream of a simulated member");
        });
    MutexLock lock(mutex_);
    if (stopping_) return nullptr;
    ++live_;
    streams_.push_back(std::move(stream));
    return streams_.back().get();
  }

  // Members are numbered host by host: the agent, then its ranks.
  Connection* ConnectionOf(int member) { return connections_[member % options_.connections].get(); }

  void StartAgent(int host) {
    const int member = host * (options_.local_workers + 1);
    SimulatedMemberStream* const stream =
        AddStream([this, member](grpc::ByteBuffer& bytes) { OnAgentMessage(member, bytes); });
    if (stream == nullptr) return;
    v1::AttendRequest request;
    v1::JoinHost* join = request.mutable_join_host();
    join->set_host_name(absl::StrCat("host-", host));
    join->set_local_workers(options_.local_workers);
    join->set_job(options_.job);
    join->set_incarnation(absl::StrCat("agent-", host));
    join->set_pid(1 + host);
    stream->Start(ConnectionOf(member)->attend, std::move(request));
  }

  void OnAgentMessage(int member, grpc::ByteBuffer& bytes) {
    constexpr size_t kSmallBytes = 1024;  // FormHost is larger, and nothing else is
    if (bytes.Length() < kSmallBytes) {
      const v1::AttendResponse message = Parse(bytes);
      if (message.has_welcome()) return;
      return Fail(absl::StrCat("a simulated agent was told: ", message.ShortDebugString()));
    }
    grpc::ProtoBufferReader reader(&bytes);
    const absl::StatusOr<FormedHost> formed = ReadFormHost(&reader);
    if (!formed.ok()) return Fail(std::string(formed.status().message()));
    for (const int rank : formed->ranks) StartRank(++member, rank, formed->generation);
  }

  void StartRank(int member, int rank, int64_t generation) {
    if (rank < 0 || rank >= options_.workers) {
      return Fail(absl::StrCat("a simulated agent was given rank ", rank));
    }
    SimulatedMemberStream* const stream =
        AddStream([this, rank](grpc::ByteBuffer& bytes) { OnRankMessage(rank, bytes); });
    if (stream == nullptr) return;
    ranks_[rank] = {stream, ConnectionOf(member), generation, 0};
    v1::AttendRequest request;
    v1::JoinRank* join = request.mutable_join_rank();
    join->set_job(options_.job);
    join->set_generation(generation);
    join->set_rank(rank);
    join->set_incarnation(IncarnationOf(rank));
    join->set_pid(100'000 + rank);
    stream->Start(ranks_[rank].connection->attend, std::move(request));
  }

  void OnRankMessage(int rank, grpc::ByteBuffer& bytes) {
    const v1::AttendResponse message = Parse(bytes);
    if (message.has_welcome()) {
      ++joined_;
      ListUnits(rank, "");
    } else if (message.has_start()) {
      if (++started_ < options_.workers) return;
      MutexLock lock(mutex_);
      last_start_ = Clock::Real()->Now();
      changed_.NotifyAll();
    } else {
      Fail(absl::StrCat("simulated rank ", rank, " was told: ", message.ShortDebugString()));
    }
  }

  void ListUnits(int rank, const std::string& page_token) {
    if (!Begin()) return;
    auto* call = new ListUnitsCall();
    call->context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
    call->request.set_job(options_.job);
    call->request.set_generation(ranks_[rank].generation);
    call->request.set_page_token(page_token);
    ranks_[rank].connection->list_units.UnaryCall(
        &call->context, "/tessera.v1.MembershipService/ListUnits", {}, &call->request,
        &call->response, [this, rank, call](const grpc::Status& status) {
          const std::unique_ptr<ListUnitsCall> ended(call);
          if (status.ok()) OnUnits(rank, &call->response);
          End(FromGrpcStatus(status), "a ListUnits of a simulated rank");
        });
  }

  void OnUnits(int rank, grpc::ByteBuffer* bytes) {
    grpc::ProtoBufferReader reader(bytes);
    const absl::StatusOr<UnitsPage> page = ReadUnitsPage(&reader);
    if (!page.ok()) return Fail(std::string(page.status().message()));
    ranks_[rank].units += page->units;
    if (!page->next_page_token.empty()) return ListUnits(rank, page->next_page_token);
    if (ranks_[rank].units != options_.units) {
      return Fail(absl::StrCat("simulated rank ", rank, " was listed ", ranks_[rank].units,
                               " units of ", options_.units));
    }
    ++listed_;
    v1::AttendRequest ready;
    ready.mutable_rank_ready()->set_measured_bytes(int64_t{1} << 30);
    ranks_[rank].stream->Send(std::move(ready));
  }

  // Sends what is due, every kPace: what a member sends falls on its place in the period.
  void Pace(const std::stop_token& stop) {
    const absl::Time start = Clock::Real()->Now();
    const auto members = static_cast<int64_t>(streams_.size());
    int64_t beats = 0;
    int64_t reports = 0;
    for (absl::Time next = start; !stop.stop_requested(); next += kPace) {
      const absl::Duration passed = Clock::Real()->Now() - start;
      const int64_t step = 1 + passed / options_.step;
      const auto due_beats = static_cast<int64_t>(absl::FDivDuration(passed, options_.heartbeat) *
                                                  static_cast<double>(members));
      for (; beats < due_beats; ++beats) {
        const int unit = static_cast<int>(beats / members % std::max(1, options_.units));
        heartbeats_ += streams_[beats % members]->SendIfIdle(HeartbeatOf(step, unit));
      }
      const auto due_reports =
          static_cast<int64_t>(absl::FDivDuration(passed, options_.step) * options_.workers);
      for (; reports < due_reports; ++reports) {
        Report(static_cast<int>(reports % options_.workers), reports / options_.workers);
      }
      std::this_thread::sleep_for(absl::ToChronoNanoseconds(next + kPace - Clock::Real()->Now()));
    }
  }

  void Report(int rank, int64_t step) {
    if (!Begin()) return;
    v1::ReportStatsRequest header;
    header.set_job(options_.job);
    header.set_generation(ranks_[rank].generation);
    header.set_rank(rank);
    header.set_incarnation(IncarnationOf(rank));
    header.set_step(step);
    header.set_measured_bytes(int64_t{1} << 30);
    const std::string bytes = header.SerializeAsString();
    const grpc::Slice parts[] = {grpc::Slice(bytes), grpc::Slice(samples_.data(), samples_.size(),
                                                                 grpc::Slice::STATIC_SLICE)};
    auto* call = new ReportCall();
    call->context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
    call->request = grpc::ByteBuffer(parts, 2);
    ranks_[rank].connection->report.UnaryCall(
        &call->context, "/tessera.v1.MembershipService/ReportStats", {}, &call->request,
        &call->response, [this, call](const grpc::Status& status) {
          const std::unique_ptr<ReportCall> ended(call);
          reports_ += status.ok();
          End(FromGrpcStatus(status), "a ReportStats of a simulated rank");
        });
  }

  const Options options_;
  const std::string samples_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::unique_ptr<v1::PlanService::Stub> plans_;
  std::vector<Rank> ranks_;  // each of its own stream's callbacks, then of the pacer
  std::atomic<int> joined_{0}, listed_{0}, started_{0};
  std::atomic<int64_t> heartbeats_{0}, reports_{0};

  Mutex mutex_;
  CondVar changed_;
  // Grows while forming; then only read, until Stop.
  std::vector<std::unique_ptr<SimulatedMemberStream>> streams_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_start_ ABSL_GUARDED_BY(mutex_);
  int64_t live_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::jthread pacer_;
};

SimulatedMembers::SimulatedMembers(Options options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
SimulatedMembers::~SimulatedMembers() { Stop(); }
absl::StatusOr<absl::Duration> SimulatedMembers::Form(absl::Time deadline) {
  return impl_->Form(deadline);
}
void SimulatedMembers::BeginSteady() { impl_->BeginSteady(); }
SimulatedMembers::Sent SimulatedMembers::TakeSent() { return impl_->TakeSent(); }
absl::Status SimulatedMembers::Health() { return impl_->Health(); }
absl::StatusOr<absl::Duration> SimulatedMembers::TimeGetPlan() { return impl_->TimeGetPlan(); }
void SimulatedMembers::Stop() { impl_->Stop(); }

}  // namespace tessera
