// The reflection service (grpc.reflection.v1alpha): what a server's services and messages are, for
// grpcurl and the like.
//
//   ReflectionService reflection({"tessera.v1.JobService"});
//
// Thread-safe.
#ifndef TESSERA_COMMON_GRPC_REFLECTION_H_
#define TESSERA_COMMON_GRPC_REFLECTION_H_

#include <string>
#include <utility>
#include <vector>

#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace tessera {

class ReflectionService final
    : public grpc::reflection::v1alpha::ServerReflection::CallbackService {
 public:
  // Full names, in any order.
  explicit ReflectionService(std::vector<std::string> services);

  grpc::ServerBidiReactor<grpc::reflection::v1alpha::ServerReflectionRequest,
                          grpc::reflection::v1alpha::ServerReflectionResponse>*
  ServerReflectionInfo(grpc::CallbackServerContext* context) override;

  // The answer to one question. Errors are in the answer.
  grpc::reflection::v1alpha::ServerReflectionResponse Answer(
      const grpc::reflection::v1alpha::ServerReflectionRequest& request) const;

 private:
  std::vector<std::string> services_;
};

}  // namespace tessera

#endif  // TESSERA_COMMON_GRPC_REFLECTION_H_
