#include "client/module_tree.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::Module* AddModule(v1::Module* parent, const std::string& name, const std::string& class_name) {
  v1::Module* module = parent->add_children();
  module->set_name(name);
  module->set_class_name(class_name);
  return module;
}

void AddParameter(v1::Module* module, const std::string& name, int64_t numel,
                  const std::string& dtype = "float32") {
  v1::Parameter* parameter = module->add_parameters();
  parameter->set_name(name);
  parameter->add_shape(numel);
  parameter->set_dtype(dtype);
}

// A unit that holds these parameters.
void AddUnit(v1::Plan* plan, const std::string& fqn, const std::vector<std::string>& parameters) {
  v1::Unit* unit = plan->add_units();
  unit->set_fqn(fqn);
  for (const std::string& name : parameters) unit->add_parameters()->set_fqn(name);
}

// wte (100 elements), four layers of 10 + 20 elements and a last one of 10 + 21.
v1::ModelSpec LayersModel() {
  v1::ModelSpec model;
  model.mutable_root()->set_class_name("Model");
  AddParameter(AddModule(model.mutable_root(), "wte", "Embedding"), "weight", 100);
  v1::Module* layers = AddModule(model.mutable_root(), "layers", "ModuleList");
  for (int i = 0; i < 5; ++i) {
    v1::Module* layer = AddModule(layers, absl::StrCat(i), "Block");
    AddParameter(AddModule(layer, "attn", "Attention"), "w", 10);
    AddParameter(AddModule(layer, "mlp", "Mlp"), "w", i == 4 ? 21 : 20, "bfloat16");
  }
  return model;
}

v1::Plan LayersPlan() {
  v1::Plan plan;
  for (int i = 0; i < 5; ++i) {
    const std::string fqn = absl::StrCat("layers.", i);
    AddUnit(&plan, fqn, {absl::StrCat(fqn, ".attn.w"), absl::StrCat(fqn, ".mlp.w")});
  }
  AddUnit(&plan, "", {"wte.weight"});
  return plan;
}

const std::vector<UnitGroup>& LayersGroups() {
  static const auto* const groups = new std::vector<UnitGroup>{
      {"layers.0-3 x4", {0, 1, 2, 3}}, {"layers.4", {4}}, {"(root)", {5}}};
  return *groups;
}

// "name class x siblings", from the root down, children indented.
std::vector<std::string> Lines(const ModuleTree& tree, int node = 0,
                               const std::string& indent = "") {
  const ModuleTree::Node& one = tree.nodes()[node];
  std::vector<std::string> lines = {absl::StrCat(indent, one.name, " ", one.class_name, " x",
                                                 one.siblings, one.is_unit ? " unit " : " ",
                                                 one.group)};
  for (const int child : one.children) {
    for (const std::string& line : Lines(tree, child, absl::StrCat(indent, "  "))) {
      lines.push_back(line);
    }
  }
  return lines;
}

TEST(ModuleTreeTest, FoldsEqualSiblings) {
  const auto tree = ModuleTree::Create(LayersModel(), LayersPlan(), LayersGroups());
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_THAT(Lines(*tree), ElementsAre(" Model x1 unit 2",           //
                                        "  wte Embedding x1 2",       //
                                        "  layers ModuleList x1 -3",  //
                                        "    0-3 Block x4 unit 0",    //
                                        "      attn Attention x1 0",  //
                                        "      mlp Mlp x1 0",         //
                                        "    4 Block x1 unit 1",      //
                                        "      attn Attention x1 1",  //
                                        "      mlp Mlp x1 1"));
}

TEST(ModuleTreeTest, CountsAllThatANodeStandsFor) {
  const auto tree = ModuleTree::Create(LayersModel(), LayersPlan(), LayersGroups());
  const ModuleTree::Node& root = tree->nodes()[0];
  EXPECT_EQ(root.numel, 100 + 4 * 30 + 31);
  EXPECT_EQ(root.bytes, 400 + 4 * (40 + 40) + 40 + 42);
  EXPECT_EQ(root.own_bytes, 0);
  const ModuleTree::Node& layers = tree->nodes()[root.children[1]];
  const ModuleTree::Node& four = tree->nodes()[layers.children[0]];
  EXPECT_EQ(four.modules, 4);
  EXPECT_EQ(four.numel, 120);
  EXPECT_EQ(four.bytes, 320);
  const ModuleTree::Node& mlp = tree->nodes()[four.children[1]];
  EXPECT_EQ(mlp.siblings, 1);
  EXPECT_EQ(mlp.modules, 4);
  EXPECT_EQ(mlp.own_bytes, 160);
}

TEST(ModuleTreeTest, TellsOrphansAndIgnoredApart) {
  v1::Plan plan;
  AddUnit(&plan, "layers.4", {"layers.4.attn.w", "layers.4.mlp.w"});
  plan.add_ignored("wte.weight");
  plan.add_orphans("layers.0.attn.w");
  const auto tree = ModuleTree::Create(LayersModel(), plan, {{"layers.4", {0}}});
  EXPECT_THAT(
      Lines(*tree),
      ElementsAre(" Model x1 -3", "  wte Embedding x1 -2", "  layers ModuleList x1 -3",
                  "    0-3 Block x4 -3", "      attn Attention x1 -1", "      mlp Mlp x1 -1",
                  "    4 Block x1 unit 0", "      attn Attention x1 0", "      mlp Mlp x1 0"));
}

TEST(ModuleTreeTest, SaysWhatAnAliasIs) {
  v1::ModelSpec model = LayersModel();
  v1::Module* alias = model.mutable_root()->add_children();
  alias->set_name("again");
  alias->set_same_as("layers.0");
  const auto tree = ModuleTree::Create(model, LayersPlan(), LayersGroups());
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_EQ(Lines(*tree).back(), "  again same as layers.0 x1 -3");
}

TEST(ModuleTreeTest, ShowsTheLargestWithinItsBound) {
  v1::ModelSpec model;
  for (int i = 0; i < 50; ++i) {
    v1::Module* module = AddModule(model.mutable_root(), absl::StrCat("m", i), "M");
    AddParameter(AddModule(module, "a", "A"), "w", 10 + i);
  }
  v1::Plan plan;
  const auto few = ModuleTree::Create(model, plan, {}, {.max_nodes = 13, .max_children = 10});
  // The root, its ten largest, and what the two largest of those hold.
  ASSERT_EQ(few->nodes().size(), 13u);
  const ModuleTree::Node& root = few->nodes()[0];
  ASSERT_EQ(root.children.size(), 10u);
  EXPECT_EQ(few->nodes()[root.children[0]].name, "m40");
  EXPECT_EQ(root.hidden_modules, 40 * 2);
  EXPECT_EQ(root.hidden_bytes, 4 * (40 * 10 + 39 * 40 / 2));
  EXPECT_THAT(few->nodes()[root.children[9]].children, testing::SizeIs(1));
  const ModuleTree::Node& smallest = few->nodes()[root.children[0]];
  EXPECT_THAT(smallest.children, IsEmpty());
  EXPECT_EQ(smallest.hidden_modules, 1);
  EXPECT_EQ(smallest.hidden_bytes, 200);
}

TEST(ModuleTreeTest, HiddenModulesCountInEveryCopy) {
  const auto tree = ModuleTree::Create(LayersModel(), LayersPlan(), LayersGroups(),
                                       {.max_nodes = 5, .max_children = 10});
  const ModuleTree::Node& root = tree->nodes()[0];
  const ModuleTree::Node& four = tree->nodes()[tree->nodes()[root.children[1]].children[0]];
  EXPECT_EQ(four.hidden_modules, 4 * 2);
  EXPECT_EQ(four.hidden_bytes, 320);
}

TEST(ModuleTreeTest, RefusesWhatIsNoModel) {
  EXPECT_TRUE(absl::IsInvalidArgument(ModuleTree::Create({}, {}, {}).status()));
}

}  // namespace
}  // namespace tessera
