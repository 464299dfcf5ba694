// JobService over gRPC: translates for the Coordinator and holds no state of its own. Errors: as
// job_service.proto. Thread-safe. The coordinator must outlive it.
#ifndef TESSERA_COORDINATOR_JOB_SERVICE_H_
#define TESSERA_COORDINATOR_JOB_SERVICE_H_

#include <utility>

#include "common/file_roots.h"
#include "coordinator/coordinator.h"
#include "tessera/v1/job_service.grpc.pb.h"

namespace tessera {

class JobService final : public v1::JobService::CallbackService {
 public:
  // `roots`: where the files of jobs have to be; jobs with others are refused.
  explicit JobService(Coordinator* coordinator, FileRoots roots = {})
      : coordinator_(coordinator), roots_(std::move(roots)) {}

  grpc::ServerUnaryReactor* CreateJob(grpc::CallbackServerContext* context,
                                      const v1::CreateJobRequest* request,
                                      v1::CreateJobResponse* response) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request,
                                   v1::GetJobResponse* response) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(
      grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context,
                                      const v1::CancelJobRequest* request,
                                      v1::CancelJobResponse* response) override;
  grpc::ServerUnaryReactor* DrainJob(grpc::CallbackServerContext* context,
                                     const v1::DrainJobRequest* request,
                                     v1::DrainJobResponse* response) override;
  grpc::ServerUnaryReactor* ListIncidents(grpc::CallbackServerContext* context,
                                          const v1::ListIncidentsRequest* request,
                                          v1::ListIncidentsResponse* response) override;
  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* context,
                                        const v1::ListWorkersRequest* request,
                                        v1::ListWorkersResponse* response) override;

 private:
  Coordinator* const coordinator_;
  const FileRoots roots_;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_JOB_SERVICE_H_
