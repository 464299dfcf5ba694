#include "worker/agent.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/exit_code.h"
#include "common/logging.h"
#include "common/status_macros.h"
#include "worker/host_address.h"
#include "worker/host_presence.h"
#include "worker/host_workers.h"
#include "worker/incarnation.h"
#include "worker/steady_attendance.h"
#include "worker/stream_events.h"

namespace tessera {
namespace {

std::string HostNameOfMachine() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "localhost";
  return name;
}

Agent::ExitCode ExitCodeOf(const absl::Status& status) {
  return static_cast<Agent::ExitCode>(ExitCode(status));
}

}  // namespace

class Agent::Impl {
 public:
  explicit Impl(Options options) : options_(std::move(options)) {}

  const std::string& host_name() const { return options_.host_name; }

  ExitCode Run() {
    Join();
    while (!IsOver()) {
      Wait();
      for (const StreamEvent& event : events_.TakeAll()) Handle(event);
      HandleStop();
      HandleWorkers();
      HandleDeadlines();
    }
    workers_.reset();
    Goodbye();
    return Result();
  }

 private:
  void Join() {
    v1::JoinHost join;
    join.set_host_name(options_.host_name);
    join.set_local_workers(options_.local_workers);
    join.set_job(options_.job);
    join.set_incarnation(NewIncarnation());
    join.set_pid(getpid());
    // A path may be any bytes; a proto's string is UTF-8.
    if (options_.attached) join.set_program(absl::CEscape(options_.program[0]));
    connect_by_ = Clock::Real()->Now() + options_.connect_timeout;
    LogInfo(absl::StrCat("joining the coordinator ", options_.coordinator, " with ",
                         options_.local_workers, " workers"));
    presence_ = std::make_unique<HostPresence>(std::move(join));
    attendance_ = std::make_unique<SteadyAttendance>(
        AttendClient::Options{.coordinator = options_.coordinator, .wait_for_ready = true},
        SteadyAttendance::Handlers{
            .opening = [this](bool again) { return presence_->Opening(again); },
            .on_response =
                [this](const v1::AttendResponse& response) {
                  events_.Push(response);
                  return !response.has_end() || response.end().state() == v1::RECOVERING;
                },
            .on_away = [this](const absl::Status& status) { events_.Push(Away{status}); },
            .on_done = [this](const absl::Status& status) { events_.Push(status); }});
  }

  bool IsOver() const {
    if (give_up_.has_value() || stops_ > 1) return true;
    const bool coordinator_is_through = end_.has_value() || done_.has_value() || stops_ > 0;
    if (workers_ == nullptr) return coordinator_is_through;
    return workers_->all_ended() && (coordinator_is_through || answer_by_ <= Clock::Real()->Now());
  }

  // Until something happens or the next deadline.
  void Wait() {
    std::vector<pollfd> fds;
    if (workers_ != nullptr) fds = workers_->PollFds();
    fds.push_back({events_.fd(), POLLIN, 0});
    if (options_.stop_fd >= 0) fds.push_back({options_.stop_fd, POLLIN, 0});
    const absl::Time deadline = std::min({connect_by_, away_by_, kill_by_, answer_by_});
    const int milliseconds =
        deadline == absl::InfiniteFuture() ? -1 : PollTimeout(deadline - Clock::Real()->Now());
    // An error, EINTR above all, is as good as a wake-up without cause.
    poll(fds.data(), fds.size(), milliseconds);
  }

  void Handle(const StreamEvent& event) {
    if (const auto* status = std::get_if<absl::Status>(&event); status != nullptr) {
      HandleStreamEnd(*status);
      return;
    }
    if (const auto* away = std::get_if<Away>(&event); away != nullptr) {
      HandleAbsence(away->status);
      return;
    }
    const v1::AttendResponse& response = std::get<v1::AttendResponse>(event);
    if (response.has_welcome()) {
      HandleWelcome();
    } else if (response.has_form_host()) {
      Form(response.form_host());
    } else if (response.has_end() && response.end().state() == v1::RECOVERING) {
      Await(response.end());
    } else if (response.has_end() && !end_.has_value()) {
      end_ = response.end();
      LogInfo(absl::StrCat("the job is ", v1::JobState_Name(end_->state()),
                           end_->reason().empty() ? "" : ": ", end_->reason()));
      KillIn(options_.end_grace);
    }
  }

  // The generation is over and the job is not: what was held against this one's ranks is settled.
  void Await(const v1::EndGeneration& end) {
    LogInfo(absl::StrCat("the job recovers: ", end.reason()));
    recovering_ = true;
    ForgetGeneration();
  }

  void ForgetGeneration() {
    blame_.reset();
    kill_by_ = answer_by_ = absl::InfiniteFuture();
  }

  void HandleWelcome() {
    LogInfo(away() ? "joined again" : "joined");
    connect_by_ = away_by_ = absl::InfiniteFuture();
    AwaitAnswer();
  }

  // The workers compute on. What else there is waits until the coordinator is back.
  void HandleAbsence(const absl::Status& why) {
    if (away() || done_.has_value() || connect_by_ != absl::InfiniteFuture()) return;
    LogInfo(absl::StrCat("the coordinator ", options_.coordinator, " is away (", why.message(),
                         "); trying again for ",
                         absl::FormatDuration(options_.coordinator_timeout)));
    away_by_ = Clock::Real()->Now() + options_.coordinator_timeout;
    answer_by_ = absl::InfiniteFuture();
  }

  bool away() const { return away_by_ != absl::InfiniteFuture(); }

  // Once every worker has ended, for the coordinator's last word.
  void AwaitAnswer() {
    if (workers_ == nullptr || !workers_->all_ended() || recovering_ || away()) return;
    answer_by_ = Clock::Real()->Now() + options_.coordinator_grace;
  }

  void HandleStreamEnd(const absl::Status& status) {
    connect_by_ = absl::InfiniteFuture();
    done_ = status;
    if (end_.has_value() || left_) return;
    if (status.ok() || absl::IsUnavailable(status) || absl::IsCancelled(status)) {
      done_ = absl::UnavailableError(absl::StrCat("the coordinator ", options_.coordinator,
                                                  " is gone", status.message().empty() ? "" : ": ",
                                                  status.message()));
    }
    LogError(done_->message());
    KillIn(options_.end_grace);
  }

  void Form(const v1::FormHost& form) {
    // Nothing is started for a coordinator that asks twice, or too late.
    if (end_.has_value() || done_.has_value() || stops_ > 0) return;
    if (workers_ != nullptr && form.generation() <= workers_->generation() && !workers_->draft())
      return;
    const absl::Status formed = FormWorkers(form);
    if (!formed.ok()) {
      // Whoever tells it says of which host it is: this process's log and the coordinator.
      LogError(formed.message());
      give_up_ = formed;
      // Before any worker ends, so that the coordinator hears the reason first.
      if (workers_ != nullptr) Leave(formed);
      return;
    }
    presence_->Serves(form);
    formed_ = true;
    recovering_ = false;
    ForgetGeneration();
  }

  absl::Status FormWorkers(const v1::FormHost& form) {
    if (workers_ != nullptr && workers_->draft() && !form.recover() &&
        form.generation() == workers_->generation())
      return workers_->Complete(form);
    LogInfo(absl::StrCat(
        form.recover() ? "recovering " : "starting ", form.assignments_size(), " workers for job ",
        form.job(),
        form.host_names_size() < 2
            ? ""
            : absl::StrCat(" as host ", form.host() + 1, " of ", form.host_names_size()),
        form.draft() ? ", which build its model" : "", options_.attached ? ": " : "",
        options_.attached ? absl::StrJoin(options_.program, " ") : ""));
    if (form.recover() && workers_ != nullptr) return workers_->Recover(form, options_.program);
    // Those of an earlier generation, their processes and files: there is room for one job.
    workers_.reset();
    TESSERA_ASSIGN_OR_RETURN(workers_, StartWorkers(form));
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<HostWorkers>> StartWorkers(const v1::FormHost& form) const {
    HostWorkers::Host host = {.coordinator = options_.coordinator, .name = options_.host_name};
    if (form.host_names_size() > 1) {
      host.address = options_.host_address;
      if (host.address.empty()) {
        TESSERA_ASSIGN_OR_RETURN(host.address, LocalAddressTowards(options_.coordinator));
      }
    }
    return HostWorkers::Start(form, host, options_.program);
  }

  void HandleStop() {
    pollfd stop = {options_.stop_fd, POLLIN, 0};
    if (options_.stop_fd < 0 || poll(&stop, 1, 0) != 1) return;
    signalfd_siginfo ignored;
    if (read(options_.stop_fd, &ignored, sizeof(ignored)) <= 0) return;
    if (++stops_ > 1) return;
    LogInfo("told to stop");
    // Before any worker ends, so that the coordinator hears the reason first.
    Leave(absl::CancelledError(
        absl::StrCat("the agent of host ", options_.host_name, " was told to stop")));
    if (workers_ == nullptr) return;
    workers_->Signal(SIGTERM);
    KillIn(options_.stop_grace);
  }

  void HandleWorkers() {
    if (workers_ == nullptr) return;
    const bool any_before = !workers_->all_ended();
    for (const HostWorkers::Ended& ended : workers_->Advance()) {
      const std::string what =
          absl::StrCat("rank ", ended.rank, " (pid ", ended.pid, ") ", ended.status.ToString());
      // After the coordinator's last word, or the agent's, it is no news.
      if (!ended.status.ok() && !ended.told_to && !end_.has_value()) LogError(what);
      if (!ended.status.ok() && !blame_.has_value()) {
        blame_ = Blame{.rank = ended.rank, .what = what};
        // Where the job can recover the others wait for the coordinator's word.
        if (!workers_->recovers()) KillIn(options_.failure_grace);
      }
      v1::AttendRequest request;
      request.mutable_worker_exited()->set_rank(ended.rank);
      request.mutable_worker_exited()->set_exit_code(ended.status.code);
      request.mutable_worker_exited()->set_signal(ended.status.signal);
      request.mutable_worker_exited()->set_generation(ended.generation);
      presence_->Ended(request.worker_exited());
      attendance_->Send(request);
    }
    if (any_before && workers_->all_ended()) {
      kill_by_ = absl::InfiniteFuture();
      AwaitAnswer();
    }
  }

  void HandleDeadlines() {
    const absl::Time now = Clock::Real()->Now();
    if (connect_by_ <= now) {
      give_up_ = absl::UnavailableError(
          absl::StrCat("the coordinator ", options_.coordinator, " did not answer within ",
                       absl::FormatDuration(options_.connect_timeout)));
      LogError(give_up_->message());
    }
    if (away_by_ <= now) {
      away_by_ = absl::InfiniteFuture();
      HandleStreamEnd(absl::UnavailableError(
          absl::StrCat("not back for ", absl::FormatDuration(options_.coordinator_timeout))));
    }
    if (kill_by_ <= now) {
      kill_by_ = absl::InfiniteFuture();
      LogInfo("killing the workers that have not ended");
      workers_->Signal(SIGKILL);
    }
  }

  // The earliest of several counts.
  void KillIn(absl::Duration grace) {
    if (workers_ == nullptr || workers_->all_ended()) return;
    kill_by_ = std::min(kill_by_, Clock::Real()->Now() + grace);
  }

  void Leave(const absl::Status& status) {
    if (std::exchange(left_, true)) return;
    v1::Leave leave;
    leave.set_code(static_cast<int>(status.code()));
    leave.set_message(std::string(status.message()));
    if (blame_.has_value()) leave.set_blamed_rank(blame_->rank);
    attendance_->Leave(leave);
  }

  // Says why it goes, unless it has said so, and waits a little for the coordinator to take it.
  void Goodbye() {
    if (give_up_.has_value()) {
      Leave(*give_up_);
    } else if (end_.has_value() || done_.has_value() || stops_ > 0) {
      Leave(absl::OkStatus());
    } else {
      const std::string what = blame_.has_value() ? blame_->what : "all workers have ended";
      LogError(absl::StrCat(what, "; the coordinator ", options_.coordinator,
                            " has not ended the job, this host leaves it"));
      Leave(blame_.has_value() ? absl::UnavailableError(what) : absl::OkStatus());
    }
    attendance_->AwaitEnd(options_.leave_timeout, absl::ZeroDuration());
    attendance_.reset();
  }

  ExitCode Result() const {
    if (end_.has_value()) {
      return end_->state() == v1::SUCCEEDED && !blame_.has_value() ? kOk : kFailed;
    }
    if (give_up_.has_value()) return ExitCodeOf(*give_up_);
    if (stops_ > 0) return formed_ ? kFailed : kOk;
    if (done_.has_value()) return ExitCodeOf(*done_);
    return blame_.has_value() ? kFailed : kUnavailable;
  }

  // The first worker that failed.
  struct Blame {
    int rank = 0;
    std::string what;
  };

  const Options options_;
  StreamEvents events_;
  std::unique_ptr<HostWorkers> workers_;  // null before FormHost

  absl::Time connect_by_ = absl::InfiniteFuture();  // the Welcome
  absl::Time away_by_ = absl::InfiniteFuture();  // the coordinator's return; infinite: it is there
  absl::Time kill_by_ = absl::InfiniteFuture();  // the workers' end
  absl::Time answer_by_ =
      absl::InfiniteFuture();  // the generation's end, once every worker has ended

  std::optional<v1::EndGeneration> end_;  // the coordinator's last word
  std::optional<absl::Status> done_;      // how the stream ended
  std::optional<absl::Status> give_up_;   // why this host cannot go on
  std::optional<Blame> blame_;
  int stops_ = 0;  // how often it was told to
  bool left_ = false;
  bool formed_ = false;
  bool recovering_ = false;  // since the coordinator's EndGeneration, until it forms anew

  std::unique_ptr<HostPresence> presence_;  // from Join on
  // Last: its handlers use the two above.
  std::unique_ptr<SteadyAttendance> attendance_;
};

Agent::Agent(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Agent::~Agent() = default;

absl::StatusOr<std::unique_ptr<Agent>> Agent::Create(Options options) {
  if (options.local_workers < 1 || options.local_workers > kMaxLocalWorkers) {
    return InvalidField("--local_workers", absl::StrCat("is ", options.local_workers,
                                                        "; give 1 to ", kMaxLocalWorkers));
  }
  if (options.coordinator.empty()) return InvalidField("--coordinator", "is empty; give HOST:PORT");
  if (options.program.empty()) return InvalidField("PROGRAM", "is empty; give a path");
  if (options.host_name.empty()) options.host_name = HostNameOfMachine();
  return std::unique_ptr<Agent>(new Agent(std::make_unique<Impl>(std::move(options))));
}

const std::string& Agent::host_name() const { return impl_->host_name(); }

Agent::ExitCode Agent::Run() { return impl_->Run(); }

}  // namespace tessera
