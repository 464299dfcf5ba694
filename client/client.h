// A coordinator, as a program sees it. What `tessera` is made of; gRPC stays inside.
//
//   Client client("127.0.0.1:4020");
//   TESSERA_ASSIGN_OR_RETURN(const v1::Job job, client.CreateJob(spec, /*validate_only=*/false));
//   const auto print = [](const v1::WatchJobResponse& event) { ... };
//   TESSERA_ASSIGN_OR_RETURN(const v1::Job ended,
//                            client.WatchJob(job.name(), {.on_event = print}));
//
// Every call has a deadline. UNAVAILABLE is tried again, at most 5 attempts with growing pauses,
// and nothing else is; calls that change something carry a request id, so that one that is repeated
// acts once, also where the coordinator was started again in between.
// Errors carry the server's reason and field (common/errors.h):
//   INVALID_ARGUMENT   the request is wrong; names the field.
//   NOT_FOUND          no such job.
//   UNAVAILABLE        nobody answers at the address, after all attempts; names the address and
//                      says why (client/connection_error.h).
//   DEADLINE_EXCEEDED  no answer in time.
//   CANCELLED          Stop was called.
//
// Thread-safety: any thread may call anything.
#ifndef TESSERA_CLIENT_CLIENT_H_
#define TESSERA_CLIENT_CLIENT_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "tessera/v1/job_service.pb.h"
#include "tessera/v1/plan_service.pb.h"
#include "tessera/v1/stats_service.pb.h"

namespace tessera {

// What a watch tells, each in the thread that watches. Only on_event is needed.
struct WatchHandlers {
  // A state change, a line of progress or an incident. `missed` of them, just before this one, are
  // lost: they were dropped by the coordinator before this watch got to them.
  std::function<void(const v1::WatchJobResponse&)> on_event = {};
  // The stream broke, and why. It is opened again, without loss or repetition, until `patience` is
  // over.
  std::function<void(const absl::Status& why, absl::Duration patience)> on_broken = {};
  // After on_broken: the coordinator is there again.
  std::function<void()> on_resumed = {};
};

class Client {
 public:
  struct Options {
    // Before the second attempt of a call; doubles with each further one.
    absl::Duration first_pause = absl::Milliseconds(100);
    // How long a watch that has begun is tried to be opened again.
    absl::Duration watch_patience = absl::Seconds(30);
    // What watch_patience is measured with.
    const Clock* clock = Clock::Real();
  };

  // `coordinator`: HOST:PORT. Does not connect yet.
  Client(const std::string& coordinator, Options options);
  explicit Client(const std::string& coordinator) : Client(coordinator, Options()) {}
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // ALREADY_EXISTS: a live job has the name. With validate_only nothing is created.
  absl::StatusOr<v1::Job> CreateJob(const v1::JobSpec& spec, bool validate_only);
  absl::StatusOr<v1::Job> GetJob(const std::string& name);
  // Every job, the newest first, and when the coordinator said so.
  absl::StatusOr<v1::ListJobsResponse> ListJobs();
  // Tells each state change and line of progress once, from the job's beginning, and returns the
  // ended job. Goes on after the last event where the stream breaks. UNAVAILABLE, or what broke the
  // stream: nobody answered, or for watch_patience no stream has held. NOT_FOUND: also where
  // another job has taken the name meanwhile.
  absl::StatusOr<v1::Job> WatchJob(const std::string& name, const WatchHandlers& handlers);
  // A job that has ended is left as it is. One attempt of at most 2 seconds: who cancels wants to
  // be gone.
  absl::StatusOr<v1::Job> CancelJob(const std::string& name, const std::string& reason);
  // Stops a job after the step that it is in; does not wait for it. FAILED_PRECONDITION: it has
  // ended.
  absl::StatusOr<v1::Job> DrainJob(const std::string& name);
  // Plan and layout with all their units.
  absl::StatusOr<v1::CreatePlanResponse> GetPlan(const std::string& job);
  absl::StatusOr<v1::JobStats> GetStats(const std::string& job);
  // All pages.
  absl::StatusOr<std::vector<v1::Worker>> ListWorkers(const std::string& job);
  absl::StatusOr<std::vector<v1::Incident>> ListIncidents(const std::string& job);

  // Ends calls under way, and later ones, with CANCELLED; CancelJob still works.
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_CLIENT_H_
