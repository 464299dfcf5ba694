// What a plan's notes say of its units: decisions that a reader may not expect.
#ifndef TESSERA_COORDINATOR_UNIT_NOTES_H_
#define TESSERA_COORDINATOR_UNIT_NOTES_H_

#include "common/model_spec.h"
#include "coordinator/unit_homes.h"
#include "coordinator/wrap_policy.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

// Adds notes on units with nothing left, on frozen parameters beside trainable ones (with what they
// cost; pytorch #91167), on settings of modules that are no units, on what is ignored and on
// orphans (fairscale #791).
void AddUnitNotes(const ModelIndex& index, const WrapChoice& choice, const UnitHomes& homes,
                  v1::Plan* plan);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_UNIT_NOTES_H_
