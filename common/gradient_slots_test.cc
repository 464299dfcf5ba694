#include "common/gradient_slots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::ElementsAre;

class GradientSlotsTest : public ::testing::Test {
 protected:
  // Returns the unit's index.
  int AddUnit(int level, int enclosing, int64_t numel = 32) {
    v1::Unit& unit = units_.emplace_back();
    if (enclosing >= 0) unit.set_enclosing_unit(enclosing);
    v1::UnitLayout& layout = layouts_.emplace_back();
    layout.set_level(level);
    layout.set_padded_numel(numel);
    return static_cast<int>(units_.size()) - 1;
  }
  void AddLevelSlot(int level) { layout_.add_gradient_slots()->set_level(level); }
  void AddSpare() { layout_.add_gradient_slots(); }
  void AddUnitSlot(int unit) { layout_.add_gradient_slots()->set_unit(unit); }
  std::vector<int> Slots() const { return GradientSlotsByUnit(layout_, units_, layouts_); }

  v1::Layout layout_;
  std::vector<v1::Unit> units_;
  std::vector<v1::UnitLayout> layouts_;
};

TEST_F(GradientSlotsTest, NeighboursTakeTurnsAndTheRootHasItsOwn) {
  for (const int level : {0, 1}) AddLevelSlot(level);
  AddSpare();
  for (int block = 0; block < 4; ++block) AddUnit(1, 4);
  AddUnit(0, -1);
  EXPECT_THAT(Slots(), ElementsAre(1, 2, 1, 2, 0));
}

// A unit, those around it and its neighbour can be written at the same time.
TEST_F(GradientSlotsTest, EnclosingUnitsKeepOutOfTheSpares) {
  for (const int level : {0, 1, 2}) AddLevelSlot(level);
  AddSpare();
  AddUnit(2, 2);
  AddUnit(2, 2);
  AddUnit(1, 6);  // around 0 and 1
  AddUnit(2, 4);
  AddUnit(1, 6);  // around 3
  AddUnit(1, 6);  // around none
  AddUnit(0, -1);
  EXPECT_THAT(Slots(), ElementsAre(2, 3, 1, 2, 1, 3, 0));
}

TEST_F(GradientSlotsTest, OneSlotALevelIsEnough) {
  for (const int level : {0, 1}) AddLevelSlot(level);
  AddUnit(1, 1);
  AddUnit(0, -1);
  EXPECT_THAT(Slots(), ElementsAre(1, 0));
}

TEST_F(GradientSlotsTest, UnitsWithoutElementsHaveNone) {
  AddLevelSlot(1);
  AddUnit(1, 2);
  AddUnit(1, 2, /*numel=*/0);
  AddUnit(0, -1, /*numel=*/0);
  EXPECT_THAT(Slots(), ElementsAre(0, -1, -1));
}

// As for accumulation: units that train by name, the frozen ones by level.
TEST_F(GradientSlotsTest, SlotOfItsOwnComesFirst) {
  AddUnitSlot(2);
  AddUnitSlot(0);
  AddLevelSlot(1);
  AddUnit(1, 3);
  AddUnit(1, 3);
  AddUnit(1, 3);
  AddUnit(0, -1, /*numel=*/0);
  EXPECT_THAT(Slots(), ElementsAre(1, 2, 0, -1));
}

}  // namespace
}  // namespace tessera
