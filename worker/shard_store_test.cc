#include "worker/shard_store.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr int kUnits = 2;
constexpr int64_t kShard = 16;  // of each unit, of a flat parameter of 32
constexpr int64_t kRecord = 4096 + 64;

// Each unit: w [5, 4] at 0, b [6] at 20, padding from 26 to 32.
ShardStore::Options MakeOptions(std::vector<char>& file, int shard_index,
                                FaultPoints* faults = nullptr, DType original = v1::FLOAT32) {
  ShardStore::Options options;
  const int64_t bytes = DTypeBytes(original);  // of an element of the moments too
  const int64_t floats = kUnits * kShard * 4;  // parameters, gradients, two moments
  v1::RankFileLayout* layout = options.layout.mutable_rank_file();
  layout->set_record_bytes(kRecord);
  layout->set_optimizer_arrays(2);
  layout->set_undo_offset_bytes(kRecord + floats * bytes);
  layout->set_undo_bytes(3 * kShard * bytes);
  layout->set_total_bytes(layout->undo_offset_bytes() + layout->undo_bytes());
  if (file.empty()) file.resize(layout->total_bytes(), 0);
  for (int unit = 0; unit < kUnits; ++unit) {
    v1::Unit& planned = options.units.emplace_back();
    planned.set_original_dtype(original);
    v1::UnitParameter* w = planned.add_parameters();
    w->add_shape(5);
    w->add_shape(4);
    w->set_numel(20);
    w->set_requires_grad(true);
    v1::UnitParameter* b = planned.add_parameters();
    b->add_shape(6);
    b->set_numel(6);
    b->set_requires_grad(true);
    v1::UnitLayout& place = options.layouts.emplace_back();
    place.set_padded_numel(32);
    place.set_shard_numel(kShard);
    place.add_parameters()->set_offset(0);
    place.add_parameters()->set_offset(20);
    place.set_parameter_offset_bytes(kRecord + unit * kShard * bytes);
    place.set_gradient_offset_bytes(kRecord + (kUnits + unit) * kShard * bytes);
    place.set_optimizer_offset_bytes(kRecord + (2 * kUnits + 2 * unit) * kShard * bytes);
  }
  options.file = absl::MakeSpan(file);
  options.shard_index = shard_index;
  options.faults = faults;
  return options;
}

std::unique_ptr<ShardStore> Make(std::vector<char>& file, int shard_index,
                                 FaultPoints* faults = nullptr) {
  auto store = ShardStore::Create(MakeOptions(file, shard_index, faults));
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

void FillGradients(ShardStore& store, int64_t step) {
  for (int unit = 0; unit < kUnits; ++unit) {
    for (int64_t i = 0; i < kShard; ++i)
      store.Gradients(unit).as<float>()[i] = std::sin(1.0 + i + 10 * unit + 100 * step);
  }
}

void Vote1(ShardStore& store, int64_t step) {
  Vote vote = store.MeasureGradients();
  vote.step = step;
  store.CastVote(vote, {.step = step, .attempt = 1, .update = step, .learning_rate = 0.1});
  store.Decide(step, /*skip=*/false, 1);
}

void Ignore(int, double) {}

TEST(ShardStoreTest, PaddingIsNeverUpdatedAndNeverCounted) {
  std::vector<char> file;
  const auto store = Make(file, /*shard_index=*/1);  // flat 16..31: w's last 4, b's 6, padding 6
  for (int unit = 0; unit < kUnits; ++unit) {
    std::fill(store->Gradients(unit).as<float>().begin(), store->Gradients(unit).as<float>().end(),
              3.0f);
    std::fill(store->Parameters(unit).as<float>().begin(),
              store->Parameters(unit).as<float>().end(), 7.0f);
  }
  EXPECT_EQ(store->MeasureGradients().norm_term, kUnits * 10 * 9.0);
  Vote1(*store, 1);
  store->FinishStep(1, Ignore);
  EXPECT_NE(store->Parameters(0).as<float>()[9], 7.0f);
  for (int64_t i = 10; i < kShard; ++i) EXPECT_EQ(store->Parameters(0).as<float>()[i], 7.0f) << i;
}

TEST(ShardStoreTest, DecayActsOnMatricesAlone) {
  std::vector<char> file;
  const auto store = Make(file, 1);
  std::fill(store->Parameters(0).as<float>().begin(), store->Parameters(0).as<float>().end(), 1.0f);
  Vote1(*store, 1);  // gradients are zero
  store->FinishStep(1, Ignore);
  EXPECT_FLOAT_EQ(store->Parameters(0).as<float>()[3], 1 - 0.1f * 0.1f);  // w
  EXPECT_EQ(store->Parameters(0).as<float>()[4], 1.0f);                   // b
}

TEST(ShardStoreTest, InfinityAndNanAreSeen) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    std::vector<char> file;
    const auto store = Make(file, 0);
    EXPECT_EQ(store->MeasureGradients().non_finite, 0);
    store->Gradients(1).as<float>()[7] = bad;
    EXPECT_EQ(store->MeasureGradients().non_finite, 1);
  }
}

TEST(ShardStoreTest, SkippedStepLeavesTheShardsAndTakesNoUpdateNumber) {
  std::vector<char> file;
  const auto store = Make(file, 0);
  FillGradients(*store, 1);
  const std::vector<float> before(store->Parameters(0).as<float>().begin(),
                                  store->Parameters(0).as<float>().end());
  Vote1(*store, 1);
  store->Decide(1, /*skip=*/true, 1);
  store->FinishStep(1, Ignore);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), store->Parameters(0).as<float>().begin()));
  EXPECT_EQ(store->StepTag(0), 1);
  EXPECT_EQ(store->LastRecord().updates(), 0);
}

// The process ends at every point of the update in turn; whoever takes the file over finishes to
// the same bits.
TEST(ShardStoreTest, WhoeverTakesOverTheFileFinishesTheStep) {
  std::vector<char> undisturbed;
  const auto store = Make(undisturbed, 0);
  for (int64_t step = 1; step <= 2; ++step) {
    FillGradients(*store, step);
    Vote1(*store, step);
    store->FinishStep(step, Ignore);
  }
  struct Killed {
  };  // thrown by the fault point: the update stops there, as if the process had died
  for (const std::string point : {"undo_written", "optimizer", "optimizer_done"}) {
    for (int passage = 1; passage <= (point == "optimizer_done" ? 1 : kUnits); ++passage) {
      std::vector<char> file;
      {
        const auto first = Make(file, 0);
        FillGradients(*first, 1);
        Vote1(*first, 1);
        first->FinishStep(1, Ignore);
      }
      int passed = 0;
      FaultPoints faults([&](absl::string_view at, int64_t) {
        if (at == point && ++passed == passage) throw Killed();
      });
      const auto dying = Make(file, 0, &faults);
      FillGradients(*dying, 2);
      Vote1(*dying, 2);
      EXPECT_THROW(dying->FinishStep(2, Ignore), Killed);
      // As a half-done update would leave it.
      if (point == "undo_written") dying->Parameters(passage - 1).as<float>()[3] = 1e9f;
      const auto heir = Make(file, 0);
      heir->FinishStep(2, Ignore);
      EXPECT_EQ(
          std::vector<char>(file.begin() + kRecord, file.begin() + kRecord + kUnits * kShard * 16),
          std::vector<char>(undisturbed.begin() + kRecord,
                            undisturbed.begin() + kRecord + kUnits * kShard * 16))
          << point << " " << passage;
    }
  }
}

TEST(ShardStoreTest, Float64IsUndoneAndDoneAgain) {
  struct Killed {};
  const auto make = [](std::vector<char>& file, FaultPoints* faults) {
    return *ShardStore::Create(MakeOptions(file, 0, faults, v1::FLOAT64));
  };
  const auto vote = [](ShardStore& store) {
    for (int unit = 0; unit < kUnits; ++unit) {
      const absl::Span<double> gradients = store.Gradients(unit).as<double>();
      for (int64_t i = 0; i < kShard; ++i) gradients[i] = std::sin(1.0 + i + 10 * unit);
    }
    Vote1(store, 1);
  };
  std::vector<char> undisturbed, file;
  const auto store = make(undisturbed, nullptr);
  vote(*store);
  store->FinishStep(1, Ignore);
  FaultPoints faults([&](absl::string_view at, int64_t) {
    if (at == "undo_written") throw Killed();
  });
  const auto dying = make(file, &faults);
  vote(*dying);
  EXPECT_THROW(dying->FinishStep(1, Ignore), Killed);
  dying->Parameters(0).as<double>()[3] = 1e9;  // half done
  dying->State(0, 1).as<double>()[15] = 1e9;
  make(file, nullptr)->FinishStep(1, Ignore);
  for (int unit = 0; unit < kUnits; ++unit) {
    EXPECT_EQ(store->Parameters(unit).as<double>(), dying->Parameters(unit).as<double>());
    EXPECT_EQ(store->State(unit, 0).as<double>(), dying->State(unit, 0).as<double>());
    EXPECT_EQ(store->State(unit, 1).as<double>(), dying->State(unit, 1).as<double>());
  }
  // The first step moves by the learning rate against the sign, as closely as float64 has it.
  EXPECT_NEAR(store->Parameters(1).as<double>()[15], std::sin(26.0) > 0 ? -0.1 : 0.1, 1e-8);
}

TEST(ShardStoreTest, LossScaleIsDividedOutOfTheUpdate) {
  std::vector<char> file;
  const auto store = Make(file, 0);
  store->Gradients(0).as<float>()[0] = 512;
  Vote vote = store->MeasureGradients();
  vote.step = 1;
  store->CastVote(vote, {.step = 1, .update = 1, .learning_rate = 1, .loss_scale = 1024});
  store->Decide(1, /*skip=*/false, 0.5);
  store->FinishStep(1, Ignore);
  EXPECT_FLOAT_EQ(store->State(0, 0).as<float>()[0], 0.1f * 0.25f);  // of (1 - 0.9) x 0.5 x 0.5
  EXPECT_EQ(store->LastRecord().loss_scale, 1024);
}

TEST(ShardStoreTest, VoteAndRecordStayInTheFile) {
  std::vector<char> file;
  {
    const auto store = Make(file, 0);
    EXPECT_EQ(store->LastVote().step, 0);
    store->CastVote({.step = 5, .loss_sum = 2.5}, {.step = 5, .learning_rate = 0.25});
  }
  const auto heir = Make(file, 0);
  EXPECT_EQ(heir->LastVote().step, 5);
  EXPECT_EQ(heir->LastVote().loss_sum, 2.5);
  EXPECT_EQ(heir->LastRecord().learning_rate, 0.25);
}

TEST(ShardStoreTest, TheLastTwoStepsAreKeptByParity) {
  std::vector<char> file;
  const auto store = Make(file, 0);
  for (int64_t step = 1; step <= 3; ++step) {
    store->CastVote({.step = step, .attempt = step + 1}, {.step = step, .update = 10 * step});
  }
  EXPECT_EQ(store->VoteOf(1).step, 0);  // step 3 has its place
  EXPECT_EQ(store->VoteOf(2).attempt, 3);
  EXPECT_EQ(store->VoteOf(3).attempt, 4);
  EXPECT_EQ(store->RecordOf(2).update, 20);
  EXPECT_EQ(store->LastRecord().update, 30);
  EXPECT_EQ(store->VoteOf(4).step, 0);
}

TEST(ShardStoreTest, DecidingTwiceIsAsOnce) {
  std::vector<char> file;
  const auto store = Make(file, 0);
  store->CastVote({.step = 1}, {.step = 1, .update = 5});
  for (int i = 0; i < 2; ++i) {
    store->Decide(1, /*skip=*/true, 0.5);
    EXPECT_EQ(store->LastRecord().updates(), 4);
    EXPECT_EQ(store->LastRecord().clip_coefficient, 0.5);
  }
}

TEST(ShardStoreTest, AFileIsFilledOnceItsValuesAre) {
  std::vector<char> file;
  const auto store = Make(file, 0);
  EXPECT_FALSE(store->filled().has_value());
  store->CastVote({.step = 5}, {.step = 5});
  store->StartFrom({.step = 40, .updates = 39, .data_position = 960, .loss_scale = 512});
  const auto heir = Make(file, 0);
  ASSERT_TRUE(heir->filled().has_value());
  EXPECT_EQ(heir->filled()->step, 40);
  EXPECT_EQ(heir->filled()->updates, 39);
  EXPECT_EQ(heir->filled()->data_position, 960);
  EXPECT_EQ(heir->filled()->loss_scale, 512);
  EXPECT_EQ(heir->LastVote().step, 0);  // those of before are void
  EXPECT_EQ(heir->StepTag(1), 40);
}

TEST(ShardStoreTest, FileShorterThanItsLayoutIsRefused) {
  std::vector<char> file;
  Make(file, 0);
  file.resize(file.size() - 1);
  EXPECT_EQ(ShardStore::Create(MakeOptions(file, 0)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tessera
