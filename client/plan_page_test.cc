#include "client/plan_page.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/job_spec.h"
#include "coordinator/job_planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Planned {
  v1::ModelSpec model;
  JobPlan plan;
};

Planned PlanOf(const v1::JobSpec& spec) {
  const v1::JobSpec resolved = ResolveJobSpec(spec).value();
  return {ModelOf(resolved).value(), PlanJob(resolved, 2).value()};
}

std::string PageOf(const Planned& planned, const std::string& device_memory = "") {
  return PlanPage({planned.model, planned.plan.plan, planned.plan.layout, planned.plan.forecast,
                   device_memory})
      .value();
}

v1::JobSpec GptJob() {
  v1::JobSpec spec;
  spec.set_name("gpt");
  return spec;
}

v1::JobSpec JobOf(const v1::ModelSpec& model, const std::string& unit_class) {
  v1::JobSpec spec;
  spec.set_name("plan");
  *spec.mutable_model()->mutable_spec() = model;
  spec.mutable_wrap()->set_policy(unit_class.empty() ? "none" : "class");
  if (!unit_class.empty()) spec.mutable_wrap()->add_wrap_classes(unit_class);
  return spec;
}

void AddParameter(v1::Module* module, const std::string& name) {
  v1::Parameter* parameter = module->add_parameters();
  parameter->set_name(name);
  parameter->set_dtype("float32");
  parameter->add_shape(16);
}

TEST(PlanPageTest, ShowsTheTreeCutIntoUnits) {
  const std::string page = PageOf(PlanOf(GptJob()));
  EXPECT_THAT(page, HasSubstr("<h1>gpt</h1>"));
  // 198,272 elements in each of four equal blocks: 3,172,352 bytes in float32.
  EXPECT_THAT(page, HasSubstr("<li data-bytes=\"3172352\" data-colour=\"u0\" "
                              "data-unit=\"h.0-3 x4\"><details><summary class=\"row\">"
                              "<i class=\"chip u0\"></i><b>0-3</b> <span class=\"times\">x4</span> "
                              "<span class=\"class\">Block</span> <em>unit</em>"));
  EXPECT_THAT(page, HasSubstr("h.0-3 x4</td>"));
  EXPECT_THAT(page, HasSubstr("data-label=\"Elements\">198,272</td>"));
  EXPECT_THAT(page, HasSubstr("memory.unshard auto took resident"));
}

TEST(PlanPageTest, DrawsTheStep) {
  const std::string page = PageOf(PlanOf(GptJob()));
  for (int band = 0; band < 6; ++band) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("<path class=\"m", band, "\" d=\"M0.0 ")));
  }
  EXPECT_THAT(page, Not(HasSubstr("nan")));
  EXPECT_THAT(page, HasSubstr("backward</td><td data-label=\"Unit\" class=\"text\">h.3</td>"));
  // The device's memory is drawn where it is of the size of the plan, and said in any case.
  EXPECT_THAT(page, Not(HasSubstr("class=\"limit\"")));
  EXPECT_THAT(PageOf(PlanOf(GptJob()), "16MiB"), HasSubstr("class=\"limit\""));
  EXPECT_THAT(PageOf(PlanOf(GptJob()), "80GiB"), Not(HasSubstr("class=\"limit\"")));
  EXPECT_THAT(PageOf(PlanOf(GptJob()), "80GiB"), HasSubstr("device 80 GiB"));
}

TEST(PlanPageTest, SaysWhetherItFits) {
  Planned planned = PlanOf(GptJob());
  EXPECT_THAT(PageOf(planned), Not(HasSubstr("Fits")));
  planned.plan.forecast.set_fits(false);
  EXPECT_THAT(PageOf(planned, "1GiB"),
              HasSubstr("<dt>Fits 1GiB</dt><dd><span class=\"no\">no</span>"));
}

TEST(PlanPageTest, ShowsNamesAsText) {
  constexpr char kHostile[] = "</script><script>alert(1)</script><b a=\"'&";
  v1::ModelSpec model;
  model.set_name(kHostile);
  v1::Module* child = model.mutable_root()->add_children();
  child->set_name(kHostile);
  child->set_class_name(kHostile);
  AddParameter(child, kHostile);
  Planned planned = PlanOf(JobOf(model, kHostile));
  for (std::string* text : {planned.plan.plan.add_notes(), planned.plan.plan.add_orphans(),
                            planned.plan.plan.add_ignored(), planned.plan.layout.add_notes()}) {
    *text = kHostile;
  }
  const std::string page = PageOf(planned, kHostile);
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script>")));
  EXPECT_THAT(page, Not(HasSubstr("<b a")));
  EXPECT_THAT(page, HasSubstr("&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&lt;b "
                              "a=&quot;&#39;&amp;"));
  // The page's own script and nothing after it.
  const size_t script = page.find("<script>");
  EXPECT_EQ(page.find("<script", script + 1), std::string::npos);
  EXPECT_EQ(page.find("</script>"), page.rfind("</script>"));
}

TEST(PlanPageTest, StaysSmallForAHundredThousandModules) {
  // No two alike: no folding helps.
  v1::ModelSpec model;
  for (int group = 0; group < 100; ++group) {
    v1::Module* parent = model.mutable_root()->add_children();
    parent->set_name(absl::StrCat("a_rather_long_name_of_a_group_", group));
    parent->set_class_name(absl::StrCat("Group", group));
    for (int i = 0; i < 1000; ++i) {
      v1::Module* module = parent->add_children();
      module->set_name(absl::StrCat("a_rather_long_name_of_a_module_", group, "_", i));
      module->set_class_name("Leaf");
      AddParameter(module, "weight");
    }
  }
  const Planned planned = PlanOf(JobOf(model, "Leaf"));
  ASSERT_EQ(planned.plan.plan.units_size(), 100'001);
  const std::string page = PageOf(planned);
  EXPECT_LT(page.size(), 2'000'000u);
  EXPECT_THAT(page, HasSubstr("more modules"));
  EXPECT_THAT(page, HasSubstr("more, which --output=json has"));
}

TEST(PlanPageTest, RefusesWhatIsNoModel) {
  const Planned planned = PlanOf(GptJob());
  const v1::ModelSpec empty;
  EXPECT_TRUE(absl::IsInvalidArgument(
      PlanPage({empty, planned.plan.plan, planned.plan.layout, planned.plan.forecast, ""})
          .status()));
}

}  // namespace
}  // namespace tessera
