// What known classes of modules keep from forward to backward. For activations.cc, which says what
// is assumed.
//
//   const ClassFormula* formula = FindFormula(module);
//   if (formula == nullptr) ...                                     // unknown
//   else if (formula->keeps == nullptr) ...                         // only its children keep
//   else const Footprint footprint = formula->keeps(module, pass);  // with all below it
//
// Thread-safety: pure functions.
#ifndef TESSERA_COORDINATOR_ACTIVATION_CLASSES_H_
#define TESSERA_COORDINATOR_ACTIVATION_CLASSES_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "tessera/v1/model.pb.h"

namespace tessera {

struct Pass {
  int64_t sequences = 0;
  int64_t sequence = 0;       // tokens
  int64_t element_bytes = 0;  // of what the module computes in
  int64_t width = 0;          // features a token of the module before, 0: not known

  int64_t rows() const { return sequences * sequence; }
};

// Of all tokens of a pass.
struct Footprint {
  bool known = false;      // false: the parameters are not those of the class
  double bytes = 0;        // kept; exact up to 2^53
  double input_bytes = 0;  // what it would keep if it were computed again
  int64_t width = 0;       // features a token of its output, 0: not known
};

struct ClassFormula {
  absl::string_view class_name;
  // Null: keeps nothing itself, its children do.
  Footprint (*keeps)(const v1::Module& module, const Pass& pass);
};

// By class_name, else by base_classes in their order. Null: not known. A module without parameters
// and children is taken to work element by element.
const ClassFormula* FindFormula(const v1::Module& module);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_ACTIVATION_CLASSES_H_
