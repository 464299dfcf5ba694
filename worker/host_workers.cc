#include "worker/host_workers.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/logging.h"
#include "common/status_macros.h"
#include "worker/incarnation.h"

namespace tessera {
namespace {

absl::Status CheckForm(const v1::FormHost& form) {
  const int ranks = form.assignments_size();
  const int forecasts = form.draft() ? 0 : ranks;
  if (ranks < 1 || ranks > kMaxLocalWorkers || form.rank_forecasts_size() != forecasts) {
    return absl::InternalError(
        absl::StrCat("the coordinator assigned ", ranks, " ranks with ", form.rank_forecasts_size(),
                     " forecasts to this host; is it of the same build as the agent?"));
  }
  for (int i = 0; i < ranks; ++i) {
    const v1::Assignment& assignment = form.assignments(i);
    if ((!form.draft() && assignment.rank() != form.rank_forecasts(i).rank()) ||
        assignment.rank() != assignment.local_rank_start() + i ||
        assignment.local_world_size() != ranks) {
      return absl::InternalError(absl::StrCat("the coordinator's assignment of rank ",
                                              assignment.rank(),
                                              " contradicts the others of this host"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostWorkers>> HostWorkers::Start(
    const v1::FormHost& form, const Host& host, const std::vector<std::string>& program) {
  TESSERA_RETURN_IF_ERROR(CheckForm(form));
  std::unique_ptr<HostWorkers> workers(new HostWorkers(form, host));
  if (!form.draft()) {
    TESSERA_ASSIGN_OR_RETURN(workers->files_, CreateHostFiles(form));
  }
  for (const v1::Assignment& assignment : form.assignments()) {
    absl::StatusOr<WorkerProcess> process = WorkerProcess::Spawn(program);
    if (!process.ok()) {
      return Annotate(process.status(), absl::StrCat("rank ", assignment.rank()));
    }
    workers->ranks_.push_back({.rank = assignment.rank(),
                               .incarnation = NewIncarnation(),
                               .process = std::make_unique<WorkerProcess>(*std::move(process))});
  }
  workers->PrepareHandoffs();
  return workers;
}

absl::Status HostWorkers::SameRanks(const v1::FormHost& form) const {
  TESSERA_RETURN_IF_ERROR(CheckForm(form));
  if (form.assignments_size() == form_.assignments_size() &&
      form.assignments(0).rank() == form_.assignments(0).rank() && form.job() == form_.job()) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      "the coordinator formed this host again with other ranks than it has started");
}

absl::Status HostWorkers::Complete(const v1::FormHost& form) {
  TESSERA_RETURN_IF_ERROR(SameRanks(form));
  if (!draft() || form.draft() || form.generation() != form_.generation()) {
    return absl::InternalError("the coordinator sealed another plan than this host's ranks build");
  }
  TESSERA_ASSIGN_OR_RETURN(files_, CreateHostFiles(form));
  form_ = form;
  PrepareHandoffs();
  return absl::OkStatus();
}

absl::Status HostWorkers::Recover(const v1::FormHost& form,
                                  const std::vector<std::string>& program) {
  TESSERA_RETURN_IF_ERROR(SameRanks(form));
  if (draft() || form.draft() || form.generation() <= form_.generation()) {
    return absl::InternalError(
        "the coordinator recovers a generation that this host is not in; is it of the same build "
        "as the agent?");
  }
  TESSERA_RETURN_IF_ERROR(RenewControlFile(form, files_));
  form_ = form;
  std::set<int> survivors;
  for (Rank& rank : ranks_) {
    const bool restart = std::find(form.restart_ranks().begin(), form.restart_ranks().end(),
                                   rank.rank) != form.restart_ranks().end();
    // Who has not even got its last handoff is better started again than told more.
    if (!restart && !rank.ended && rank.handoffs.empty() && !rank.process->HasEnded()) {
      survivors.insert(rank.rank);
      continue;
    }
    rank.handoffs.clear();
    // Its file is nobody's before it is gone.
    rank.process.reset();
    absl::StatusOr<WorkerProcess> process = WorkerProcess::Spawn(program);
    if (!process.ok()) return Annotate(process.status(), absl::StrCat("rank ", rank.rank));
    rank.process = std::make_unique<WorkerProcess>(*std::move(process));
    rank.incarnation = NewIncarnation();
    rank.ended = rank.told_to_end = false;
  }
  PrepareHandoffs(survivors);
  return absl::OkStatus();
}

// Once all processes are there, since each gets the pidfds of all.
void HostWorkers::PrepareHandoffs(const std::set<int>& had_files) {
  v1::AgentHello hello;
  hello.set_coordinator(host_.coordinator);
  *hello.mutable_spec() = form_.spec();
  *hello.mutable_layout() = form_.layout();
  *hello.mutable_host_forecast() = form_.host_forecast();
  hello.set_host(form_.host());
  *hello.mutable_host_names() = form_.host_names();
  hello.set_host_address(host_.address);
  hello.set_host_name(host_.name);
  hello.set_draft(draft());
  hello.set_recover(form_.recover());
  hello.set_run(form_.run());
  hello.set_attempt(form_.attempt());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].ended) continue;
    *hello.mutable_assignment() = form_.assignments(static_cast<int>(i));
    hello.set_incarnation(ranks_[i].incarnation);
    std::vector<int> fds;
    if (!draft()) {
      *hello.mutable_rank_forecast() = form_.rank_forecasts(static_cast<int>(i));
      if (had_files.count(ranks_[i].rank) > 0) {
        fds.push_back(files_.shared[static_cast<size_t>(HandoffFile::kControl)].fd());
      } else {
        for (const MemoryFile& file : files_.shared) fds.push_back(file.fd());
        fds.push_back(files_.ranks[i].fd());
      }
    }
    for (const Rank& peer : ranks_) fds.push_back(peer.process->pidfd());
    ranks_[i].handoffs.emplace_back(ranks_[i].process->socket(), hello, std::move(fds));
  }
}

std::vector<pollfd> HostWorkers::PollFds() const {
  std::vector<pollfd> fds;
  for (const Rank& rank : ranks_) {
    if (rank.ended) continue;
    fds.push_back({rank.process->pidfd(), POLLIN, 0});
    if (!rank.handoffs.empty()) fds.push_back({rank.process->socket(), POLLOUT, 0});
  }
  return fds;
}

std::vector<HostWorkers::Ended> HostWorkers::Advance() {
  std::vector<Ended> ended;
  for (Rank& rank : ranks_) {
    if (rank.ended) continue;
    while (!rank.handoffs.empty()) {
      const absl::StatusOr<bool> sent = rank.handoffs.front().Send();
      // A worker that ended before its handoff is seen as such below; anything else that keeps it
      // from its rank is its end.
      if (!sent.ok() && !absl::IsUnavailable(sent.status())) {
        LogError(absl::StrCat("rank ", rank.rank, ": ", sent.status().ToString()));
        rank.process->Signal(SIGKILL);
      }
      if (!sent.ok()) rank.handoffs.clear();
      if (!sent.ok() || !*sent) break;
      rank.handoffs.pop_front();
    }
    const pid_t pid = rank.process->pid();
    if (const std::optional<ExitStatus> status = rank.process->TryReap(); status.has_value()) {
      rank.ended = true;
      ended.push_back({.rank = rank.rank,
                       .pid = pid,
                       .status = *status,
                       .generation = form_.generation(),
                       .told_to = rank.told_to_end});
    }
  }
  std::stable_partition(ended.begin(), ended.end(),
                        [](const Ended& worker) { return worker.status.signal != 0; });
  return ended;
}

void HostWorkers::Signal(int signal) {
  for (Rank& rank : ranks_) {
    if (rank.ended) continue;
    rank.told_to_end = true;
    rank.process->Signal(signal);
  }
}

bool HostWorkers::all_ended() const {
  for (const Rank& rank : ranks_) {
    if (!rank.ended) return false;
  }
  return true;
}

}  // namespace tessera
