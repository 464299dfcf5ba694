#include "coordinator/access_rules.h"

namespace tessera {
namespace {

constexpr int kOperators = static_cast<int>(Role::kOperator);
constexpr int kReaders = kOperators | static_cast<int>(Role::kViewer);
constexpr int kWorkers = static_cast<int>(Role::kWorker);

}  // namespace

std::vector<AccessRule> AccessRules() {
  return {
      {.method = "/tessera.v1.JobService/CreateJob", .roles = kOperators},
      {.method = "/tessera.v1.JobService/GetJob", .roles = kReaders},
      {.method = "/tessera.v1.JobService/ListJobs", .roles = kReaders},
      {.method = "/tessera.v1.JobService/WatchJob", .roles = kReaders},
      {.method = "/tessera.v1.JobService/CancelJob", .roles = kOperators},
      {.method = "/tessera.v1.JobService/DrainJob", .roles = kOperators},
      {.method = "/tessera.v1.JobService/ListWorkers", .roles = kReaders},
      {.method = "/tessera.v1.JobService/ListIncidents", .roles = kReaders},

      // Planning what the caller sends costs the coordinator's time: it reads nothing.
      {.method = "/tessera.v1.PlanService/CreatePlan", .roles = kOperators},
      {.method = "/tessera.v1.PlanService/ExplainModule", .roles = kOperators},
      {.method = "/tessera.v1.PlanService/GetPlan", .roles = kReaders},
      {.method = "/tessera.v1.PlanService/ListPlanUnits", .roles = kReaders},

      {.method = "/tessera.v1.StatsService/GetStats", .roles = kReaders},

      // The job is in the first message: coordinator/membership_service.cc asks AuthorizeJob.
      {.method = "/tessera.v1.MembershipService/Attend", .roles = kWorkers},
      {.method = "/tessera.v1.MembershipService/ListUnits", .roles = kWorkers, .job_field = "job"},
      {.method = "/tessera.v1.MembershipService/AnnounceModule",
       .roles = kWorkers,
       .job_field = "job"},
      {.method = "/tessera.v1.MembershipService/ChangeModelDType",
       .roles = kWorkers,
       .job_field = "job"},
      {.method = "/tessera.v1.MembershipService/ReportStats",
       .roles = kWorkers,
       .job_field = "job"},
      {.method = "/tessera.v1.MembershipService/PublishCommunicatorIds",
       .roles = kWorkers,
       .job_field = "job"},
      {.method = "/tessera.v1.MembershipService/FetchCommunicatorIds",
       .roles = kWorkers,
       .job_field = "job"},

      // Probes have no secrets. With --tls_require_client_cert they need a certificate to connect.
      {.method = "/grpc.health.v1.Health/Check", .anyone = true},
      {.method = "/grpc.health.v1.Health/Watch", .anyone = true},
      {.method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
       .roles = kReaders},
  };
}

}  // namespace tessera
