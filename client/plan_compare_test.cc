#include "client/plan_compare.h"

#include <nlohmann/json.hpp>

#include "client/text_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// `units` units of 100 elements in float32, and figures that are multiples of `bytes`.
ComparedPlan Plan(const std::string& source, int units, int64_t bytes) {
  ComparedPlan compared;
  compared.source = source;
  v1::Plan* plan = compared.plan.mutable_plan();
  plan->set_model_name("small");
  plan->set_plan_fingerprint("0123456789abcdef");
  v1::Layout* layout = compared.plan.mutable_layout();
  layout->set_world_size(2);
  layout->set_sharding_strategy(v1::FULL_SHARD);
  layout->set_unshard_mode(v1::SLOTS);
  for (int i = 0; i < units; ++i) {
    v1::Unit* unit = plan->add_units();
    unit->set_fqn(i + 1 < units ? "h." + std::to_string(i) : "");
    unit->set_numel(100);
    unit->set_param_dtype(v1::FLOAT32);
    layout->add_units()->set_padded_numel(128);
  }
  v1::Forecast* forecast = compared.plan.mutable_forecast();
  // The second rank has more.
  for (int i = 1; i <= 2; ++i) {
    v1::RankForecast* rank = forecast->add_ranks();
    rank->set_parameter_bytes(i * bytes);
    rank->set_gradient_bytes(i * bytes);
    rank->set_optimizer_bytes(2 * i * bytes);
    rank->set_private_total_bytes(4 * i * bytes);
  }
  v1::HostForecast* host = forecast->add_hosts();
  host->set_unsharded_bytes(bytes);
  host->set_unsharded_gradient_bytes(3 * bytes);
  host->set_shared_total_bytes(4 * bytes);
  forecast->set_activation_certainty(v1::Forecast::UNKNOWN);
  forecast->set_wire_bytes_per_step(10 * bytes);
  return compared;
}

TEST(CompareTest, PutsPlansSideBySide) {
  ComparedPlan b = Plan("b.json", 3, 750);
  b.plan.mutable_layout()->set_unshard_mode(v1::RESIDENT);
  b.plan.mutable_forecast()->set_fits(true);
  EXPECT_EQ(CompareTable(Plan("a.json", 2, 1000), b),
            "A  a.json\n"
            "B  b.json\n"
            "\n"
            "                                A             B  DIFFERENCE\n"
            "model                       small         small\n"
            "plan                 0123456789ab  0123456789ab\n"
            "strategy               full_shard    full_shard\n"
            "unshard                     slots      resident     differs\n"
            "world size                      2             2           0\n"
            "units                           2             3          +1\n"
            "elements in units             200           300        +100\n"
            "largest unit                  h.0           h.0\n"
            "  whole                       512           512           0\n"
            "a rank: parameters          2,000         1,500        -500\n"
            "  gradients                 2,000         1,500        -500\n"
            "  optimizer                 4,000         3,000      -1,000\n"
            "  all its own               8,000         6,000      -2,000\n"
            "a host: whole units         1,000           750        -250\n"
            "  gradients                 3,000         2,250        -750\n"
            "  all shared                4,000         3,000      -1,000\n"
            "activations                     -             -           -\n"
            "a rank sends a step        10,000         7,500      -2,500\n"
            "fits                            -           yes     differs\n");
}

TEST(CompareTest, StaysWithinEightyColumns) {
  ComparedPlan a = Plan(std::string(200, 'f'), 2, int64_t{1} << 57);
  a.plan.mutable_plan()->mutable_units(0)->set_fqn(std::string(300, 'x'));
  const std::string table = CompareTable(a, Plan("b", 1, 1));
  EXPECT_LE(WidestLine(table), 80u);
  EXPECT_THAT(table, HasSubstr("1 EiB"));
}

TEST(CompareTest, JsonHasTheFiguresAsStrings) {
  const auto document =
      nlohmann::json::parse(CompareJson(Plan("a\xff.json", 2, 1000), Plan("b.json", 3, 750)));
  EXPECT_EQ(document["a"]["units"], "2");
  EXPECT_EQ(document["b"]["rank_total_bytes"], "6000");
  EXPECT_EQ(document["b"]["source"], "b.json");
  EXPECT_EQ(document["difference"]["rank_total_bytes"], "-2000");
  EXPECT_EQ(document["difference"]["world_size"], "0");
  EXPECT_TRUE(document["a"]["activation_bytes"].is_null());
  EXPECT_TRUE(document["a"]["fits"].is_null());
  EXPECT_FALSE(document["difference"].contains("activation_bytes"));
  ComparedPlan fits = Plan("a", 1, 1);
  fits.plan.mutable_forecast()->set_fits(false);
  EXPECT_EQ(nlohmann::json::parse(CompareJson(fits, fits))["a"]["fits"], false);
}

TEST(CompareTest, ThePageEscapesFileNames) {
  const std::string page = ComparePage(Plan("</section><script>.json", 2, 1000), Plan("b", 1, 1));
  EXPECT_THAT(page, HasSubstr("&lt;/section&gt;&lt;script&gt;.json"));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
}

}  // namespace
}  // namespace tessera
