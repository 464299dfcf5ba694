// The module tree of a model, cut into units: what a page shows of it. Equal numbered siblings are
// one node ("0-125" x126), and the number of nodes is bounded, so that a page of a model of 100,000
// modules stays small; the largest subtrees are the ones that are shown.
//
//   TESSERA_ASSIGN_OR_RETURN(const ModuleTree tree, ModuleTree::Create(model, plan, groups));
//   Show(tree.nodes()[0]);  // the root
//
// Thread-safety: a value.
#ifndef TESSERA_CLIENT_MODULE_TREE_H_
#define TESSERA_CLIENT_MODULE_TREE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/fold_units.h"
#include "tessera/v1/model.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

// In place of a group: what holds a parameter that is in no unit.
inline constexpr int kOrphan = -1;
inline constexpr int kIgnored = -2;
inline constexpr int kNoParameters = -3;

struct ModuleTreeOptions {
  int max_nodes = 2'000;
  int max_children = 100;  // shown of one module
};

class ModuleTree {
 public:
  // Figures are of all modules that a node stands for.
  struct Node {
    std::string name;        // "layers", "0-125"; "" for the root
    std::string class_name;  // of an alias: "same as FQN"
    int64_t siblings = 1;    // that are this node
    int64_t modules = 1;     // the same times those of all enclosing nodes
    bool is_unit = false;
    int group = kNoParameters;   // of the unit that holds its own parameters, or that it is
    int64_t numel = 0;           // of the subtree, each tied parameter where it is stored
    int64_t bytes = 0;           // in the model's dtypes
    int64_t own_bytes = 0;       // of its own parameters
    std::vector<int> children;   // in nodes()
    int64_t hidden_modules = 0;  // below it that have no node, and their bytes
    int64_t hidden_bytes = 0;
  };

  // `groups` are the plan's units, folded; Node.group is a position in them. INVALID_ARGUMENT: the
  // model is not valid.
  static absl::StatusOr<ModuleTree> Create(const v1::ModelSpec& model, const v1::Plan& plan,
                                           absl::Span<const UnitGroup> groups,
                                           ModuleTreeOptions options = {});

  const std::vector<Node>& nodes() const { return nodes_; }

 private:
  friend class ModuleTreeBuilder;
  std::vector<Node> nodes_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_MODULE_TREE_H_
