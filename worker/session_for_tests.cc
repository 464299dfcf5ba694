// What only tests ask of a session.
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "worker/session_impl.h"

namespace tessera {

void SessionImpl::SpoilGradientForTests() {
  for (int unit = 0; unit < plan_.units_size(); ++unit) {
    const ShardSpan shard = parts_.store->Gradients(unit);
    if (plan_.units(unit).trainable_numel() == 0 || shard.numel == 0) continue;
    // The last bit of the element in the middle.
    shard.data[shard.numel / 2 * DTypeBytes(shard.dtype)] ^= 1;
    return;
  }
}

absl::Status SessionImpl::WriteGradientsForTests() const {
  for (int unit = 0; unit < plan_.units_size(); ++unit) {
    const ShardSpan gradients = parts_.store->Gradients(unit);
    const std::string path = absl::StrCat(parts_.gradients_dir, "/unit-", unit, "-rank-",
                                          parts_.assignment.rank(), ".f32");
    std::ofstream file(path, std::ios::binary);
    file.write(gradients.data, gradients.bytes());
    if (!file.flush()) return absl::InternalError(absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
}

}  // namespace tessera
