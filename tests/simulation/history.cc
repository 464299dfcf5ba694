#include "tests/simulation/history.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/simulation/agent.h"
#include "tests/simulation/base.h"
#include "tests/simulation/people.h"
#include "tests/simulation/server.h"

namespace tessera::simulation {
namespace {

// Of simulated time, once the faults have stopped.
constexpr absl::Duration kBound = absl::Seconds(120);

Server::Options ServerOptions(const HistoryOptions& options, int64_t lost_calls_percent) {
  Server::Options server;
  server.make_facade = options.make_facade;
  server.lost_calls_percent = lost_calls_percent;
  server.keeps_state = options.plan.restarts;
  server.loses_power = options.seed % 2 == 0;
  server.loses_all = options.forgets_on_restart;
  return server;
}

class History {
 public:
  explicit History(const HistoryOptions& options)
      : options_(options),
        base_(options.seed),
        plan_(Draw()),
        server_(&base_, ServerOptions(options, plan_.lost_calls_percent)),
        people_(&base_, &server_) {
    base_.trace.Keep(options.trace);
    cluster_.base = &base_;
    cluster_.server = &server_;
    cluster_.rank.forgets_tags = options.forgets_tags;
    cluster_.starts_twice = options.starts_twice;
  }

  HistoryResult Run() {
    StartServer();
    for (size_t host = 0; host < plan_.hosts.size(); ++host) {
      StartAgentLater(host, plan_.hosts[host].start);
    }
    for (const PlannedJobRequest& job : plan_.jobs) {
      base_.events.After(job.create, [this, &job] { people_.Ask(job); });
    }
    for (const PlannedFault& fault : plan_.faults) {
      base_.events.After(fault.at, [this, &fault] { Happen(fault); });
    }
    LookLater();
    RunFor(plan_.faults_end, /*until_ended=*/false);
    StopFaults();
    RunFor(kBound, /*until_ended=*/true);
    if (!violated() && !people_.AllEnded()) {
      base_.checker.Fail(Invariant::kEveryJobEnds, people_.Unfinished());
    }
    CheckLeaks();
    return Result();
  }

 private:
  Plan Draw() {
    Plan plan = DrawPlan(base_.random, options_.plan);
    if (options_.change != nullptr) options_.change(plan);
    return plan;
  }

  bool violated() const { return base_.checker.violation().has_value(); }

  void RunFor(absl::Duration time, bool until_ended) {
    base_.events.RunUntil(base_.events.now() + time, [this, until_ended] {
      return violated() || (until_ended && ended_ && people_.AllEnded());
    });
  }

  void StartServer() {
    const absl::Status started = server_.Start();
    if (started.ok()) return;
    base_.trace.Add("the coordinator does not start: ", started.ToString());
    base_.events.After(absl::Seconds(1), [this] {
      if (!server_.up()) StartServer();
    });
  }

  void StartAgentLater(size_t host, absl::Duration delay) {
    if (agents_.size() <= host) agents_.resize(plan_.hosts.size());
    base_.events.After(delay, [this, host] {
      if (over_) return;
      const PlannedHost& planned = plan_.hosts[host];
      // The first agent is bound; what is started after it takes what there is.
      const bool first = started_.insert(host).second;
      agents_[host] = std::make_shared<Agent>(
          &cluster_, Agent::Options{planned.name, first ? planned.job : "", planned.local_workers},
          [this, host] { StartAgentLater(host, absl::Milliseconds(500)); });
      base_.trace.Add("agent ", agents_[host]->incarnation(), " starts, bound to \"",
                      first ? planned.job : "", "\"");
      agents_[host]->Start();
    });
  }

  void LookLater() {
    base_.events.After(absl::Milliseconds(300), [this] {
      people_.Look();
      ended_ = people_.AllEnded();
      LookLater();
    });
  }

  void Happen(const PlannedFault& fault) {
    Agent* agent = agents_[fault.host % agents_.size()].get();
    switch (fault.kind) {
      case FaultKind::kPauseCoordinator:
        return server_.Pause(fault.lasts);
      case FaultKind::kKillCoordinator:
        return KillServer(fault.lasts);
      case FaultKind::kDiskFull:
        server_.FillDisk(true);
        return base_.events.After(fault.lasts, [this] { server_.FillDisk(false); });
      default:
        if (agent != nullptr && agent->alive()) HappenToHost(fault, agent);
    }
  }

  void KillServer(absl::Duration down) {
    if (!server_.up()) return;
    server_.Crash();
    ++restarts_;
    base_.events.After(down, [this] {
      if (!server_.up()) StartServer();
    });
  }

  void HappenToHost(const PlannedFault& fault, Agent* agent) {
    const std::string host = agent->options().host;
    const size_t index = fault.host % agents_.size();
    switch (fault.kind) {
      case FaultKind::kKillAgent:
        base_.checker.HostFault(host);
        agent->Kill();
        return StartAgentLater(index, fault.lasts);
      case FaultKind::kBreakStream:
        return server_.BreakAStreamOf(host);
      case FaultKind::kCutOff:
        base_.checker.HostFault(host);
        for (const auto& rank : agent->ranks()) RankFault(*rank);
        return server_.CutOff(host, fault.lasts);
      case FaultKind::kFreezeAgent: {
        base_.checker.HostFault(host);
        for (const auto& rank : agent->ranks()) RankFault(*rank);
        base_.trace.Add("host ", host, " is stopped");
        agent->Freeze();
        const std::weak_ptr<Process> weak = agent->weak_from_this();
        base_.events.After(fault.lasts, [weak] {
          const auto frozen = weak.lock();
          if (frozen != nullptr) static_cast<Agent*>(frozen.get())->Thaw();
        });
        return;
      }
      default:
        HappenToRank(fault, agent);
    }
  }

  void HappenToRank(const PlannedFault& fault, Agent* agent) {
    const std::vector<std::shared_ptr<Rank>> ranks = agent->ranks();
    if (ranks.empty()) return;
    const std::shared_ptr<Rank> rank = ranks[fault.rank % ranks.size()];
    RankFault(*rank);
    switch (fault.kind) {
      case FaultKind::kKillRank:
        return agent->KillRank(rank->handoff().rank);
      case FaultKind::kFreezeRank:
        base_.trace.Add("rank ", rank->incarnation(), " is stopped");
        rank->Stop();
        return base_.events.After(fault.lasts, [rank] { rank->Continue(); });
      case FaultKind::kStickRank:
        // Nobody waits for a rank that is alone.
        if (rank->handoff().world_size < 2) return;
        base_.trace.Add("rank ", rank->incarnation(), " is stuck");
        return rank->GetStuck();
      default:
        base_.trace.Add("rank ", rank->incarnation(), " has an error");
        return rank->Crash(absl::InternalError("its own mistake"));
    }
  }

  void RankFault(const Rank& rank) {
    base_.checker.RankFault(rank.handoff().job, rank.handoff().rank);
  }

  void StopFaults() {
    base_.trace.Add("the faults stop");
    server_.StopFaults();
    if (!server_.up()) StartServer();
  }

  // Once the members are gone, nobody holds their streams.
  void CheckLeaks() {
    if (violated()) return;
    over_ = true;
    for (const auto& agent : agents_) {
      if (agent != nullptr) agent->Kill();
    }
    RunFor(absl::Seconds(10), /*until_ended=*/false);
    if (server_.live_sinks() > 0) {
      base_.checker.Fail(
          Invariant::kNothingLeaks,
          absl::StrCat("the coordinator holds ", server_.live_sinks(), " streams that are over"));
    }
  }

  HistoryResult Result() {
    HistoryResult result;
    result.violation = base_.checker.violation();
    result.trace = base_.trace.Text();
    result.ends = people_.Ends();
    for (const auto& [name, job] : people_.jobs()) result.recoveries += job.recoveries();
    result.restarts = restarts_;
    return result;
  }

  const HistoryOptions options_;
  Base base_;
  Plan plan_;
  Server server_;
  People people_;
  Cluster cluster_;
  std::vector<std::shared_ptr<Agent>> agents_;  // by host
  std::set<size_t> started_;
  bool ended_ = false;
  bool over_ = false;
  int64_t restarts_ = 0;
};

}  // namespace

HistoryResult RunHistory(const HistoryOptions& options) { return History(options).Run(); }

std::string RunHistories(HistoryOptions options, uint64_t first, int64_t count, Totals* totals) {
  for (int64_t i = 0; i < count; ++i) {
    options.seed = first + i;
    HistoryResult result = RunHistory(options);
    if (result.violation.has_value()) {
      options.trace = 400;
      result = RunHistory(options);
      return absl::StrCat(result.trace, "seed ", options.seed,
                          ": violated: ", Name(result.violation->invariant), ": ",
                          result.violation->what);
    }
    for (const auto& [state, ended] : result.ends) totals->ends[state] += ended;
    totals->recoveries += result.recoveries;
    totals->restarts += result.restarts;
  }
  return "";
}

}  // namespace tessera::simulation
