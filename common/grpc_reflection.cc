#include "common/grpc_reflection.h"

#include <algorithm>
#include <set>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"

namespace tessera {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

void SetError(grpc::StatusCode code, const std::string& message,
              ServerReflectionResponse* response) {
  response->mutable_error_response()->set_error_code(code);
  response->mutable_error_response()->set_error_message(message);
}

// `file` after everything that it imports.
void AddFile(const FileDescriptor& file, std::set<const FileDescriptor*>& seen,
             ServerReflectionResponse* response) {
  if (!seen.insert(&file).second) return;
  for (int i = 0; i < file.dependency_count(); ++i) AddFile(*file.dependency(i), seen, response);
  google::protobuf::FileDescriptorProto described;
  file.CopyTo(&described);
  response->mutable_file_descriptor_response()->add_file_descriptor_proto(
      described.SerializeAsString());
}

void SetFile(const FileDescriptor* file, ServerReflectionResponse* response) {
  if (file == nullptr) {
    SetError(grpc::StatusCode::NOT_FOUND, "there is no such file, symbol or extension", response);
    return;
  }
  std::set<const FileDescriptor*> seen;
  AddFile(*file, seen, response);
}

const FileDescriptor* FileOfExtension(const DescriptorPool& pool,
                                      const grpc::reflection::v1alpha::ExtensionRequest& wanted) {
  const Descriptor* type = pool.FindMessageTypeByName(wanted.containing_type());
  if (type == nullptr) return nullptr;
  const FieldDescriptor* found = pool.FindExtensionByNumber(type, wanted.extension_number());
  return found == nullptr ? nullptr : found->file();
}

// One stream: a question, its answer, and the next.
class Reactor final
    : public grpc::ServerBidiReactor<ServerReflectionRequest, ServerReflectionResponse> {
 public:
  explicit Reactor(const ReflectionService* service) : service_(service) { StartRead(&request_); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    response_ = service_->Answer(request_);
    StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    StartRead(&request_);
  }
  void OnDone() override { delete this; }

 private:
  const ReflectionService* const service_;
  ServerReflectionRequest request_;
  ServerReflectionResponse response_;
};

}  // namespace

ReflectionService::ReflectionService(std::vector<std::string> services)
    : services_(std::move(services)) {
  std::sort(services_.begin(), services_.end());
}

grpc::ServerBidiReactor<ServerReflectionRequest, ServerReflectionResponse>*
ReflectionService::ServerReflectionInfo(grpc::CallbackServerContext*) {
  return new Reactor(this);
}

ServerReflectionResponse ReflectionService::Answer(const ServerReflectionRequest& request) const {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kListServices:
      for (const std::string& service : services_) {
        response.mutable_list_services_response()->add_service()->set_name(service);
      }
      break;
    case ServerReflectionRequest::kFileByFilename:
      SetFile(pool.FindFileByName(request.file_by_filename()), &response);
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      SetFile(pool.FindFileContainingSymbol(request.file_containing_symbol()), &response);
      break;
    case ServerReflectionRequest::kFileContainingExtension:
      SetFile(FileOfExtension(pool, request.file_containing_extension()), &response);
      break;
    case ServerReflectionRequest::kAllExtensionNumbersOfType: {
      const std::string& name = request.all_extension_numbers_of_type();
      const Descriptor* type = pool.FindMessageTypeByName(name);
      if (type == nullptr) {
        SetError(grpc::StatusCode::NOT_FOUND, "there is no such message", &response);
        break;
      }
      response.mutable_all_extension_numbers_response()->set_base_type_name(name);
      std::vector<const FieldDescriptor*> extensions;
      pool.FindAllExtensions(type, &extensions);
      for (const FieldDescriptor* extension : extensions) {
        response.mutable_all_extension_numbers_response()->add_extension_number(
            extension->number());
      }
      break;
    }
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      SetError(grpc::StatusCode::INVALID_ARGUMENT, "the request asks nothing", &response);
      break;
  }
  return response;
}

}  // namespace tessera
