// The coordinator as the simulated members and operators reach it: each call goes straight to the
// real one. A test plants a fault by overriding a call; the coordinator itself has no hook.
#ifndef TESSERA_TESTS_SIMULATION_FACADE_H_
#define TESSERA_TESTS_SIMULATION_FACADE_H_

#include <memory>
#include <string>
#include <utility>

#include "coordinator/coordinator.h"
#include "coordinator/member_sink.h"

namespace tessera::simulation {

class Facade {
 public:
  explicit Facade(Coordinator* coordinator) : coordinator_(coordinator) {}
  virtual ~Facade() = default;

  virtual absl::StatusOr<MemberId> Join(const v1::AttendRequest& first,
                                        std::shared_ptr<MemberSink> sink) {
    return coordinator_->Join(first, std::move(sink));
  }
  virtual absl::Status Receive(MemberId member, const v1::AttendRequest& message) {
    return coordinator_->Receive(member, message);
  }
  virtual void StreamBroken(MemberId member) { coordinator_->StreamBroken(member); }
  virtual absl::Status ReportStats(const v1::ReportStatsRequest& request) {
    return coordinator_->ReportStats(request);
  }
  virtual void Tick() { coordinator_->Tick(); }

  virtual absl::StatusOr<v1::Job> CreateJob(const v1::CreateJobRequest& request) {
    return coordinator_->CreateJob(request);
  }
  virtual absl::StatusOr<v1::Job> CancelJob(const v1::CancelJobRequest& request) {
    return coordinator_->CancelJob(request.name(), request.reason(), request.request_id());
  }
  virtual absl::StatusOr<v1::Job> DrainJob(const v1::DrainJobRequest& request) {
    return coordinator_->DrainJob(request.name(), request.request_id());
  }
  virtual absl::StatusOr<v1::GetJobResponse> GetJob(const std::string& name) {
    return coordinator_->GetJob(name);
  }

 private:
  Coordinator* coordinator_;
};

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_SIMULATION_FACADE_H_
