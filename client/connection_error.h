// What went wrong between the client and the coordinator, in words that say what to look at. gRPC's
// own are of sockets and resolvers, and often do not name the address that was tried.
//
//   return ExplainConnection(FromGrpcStatus(status), "127.0.0.1:4020");
//   UNAVAILABLE: cannot reach the coordinator at 127.0.0.1:4020: connection refused; is it running?
//
// Pure. For errors of the transport: what the coordinator itself answered is not to be explained.
#ifndef TESSERA_CLIENT_CONNECTION_ERROR_H_
#define TESSERA_CLIENT_CONNECTION_ERROR_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tessera {

// `error` with the same code and another message. `coordinator`: HOST:PORT. `deadline`: what the
// call had. Codes that have nothing to do with the connection stay as they are.
absl::Status ExplainConnection(const absl::Status& error, absl::string_view coordinator,
                               absl::Duration deadline);

}  // namespace tessera

#endif  // TESSERA_CLIENT_CONNECTION_ERROR_H_
