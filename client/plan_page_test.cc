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
  v1::JobSpec resolved;
  v1::ModelSpec model;
  JobPlan plan;
};

Planned PlanOf(const v1::JobSpec& spec) {
  const v1::JobSpec resolved = ResolveJobSpec(spec).value();
  return {resolved, ModelOf(resolved).value(), PlanJob(resolved, 2).value()};
}

std::string PageOf(const Planned& planned) {
  return PlanPage({planned.model, planned.plan.plan, planned.plan.layout, planned.plan.forecast,
                   planned.resolved})
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
  for (int band = 0; band < 7; ++band) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("<path class=\"m", band, "\" d=\"M0.0 ")));
  }
  EXPECT_THAT(page, Not(HasSubstr("nan")));
  EXPECT_THAT(page, HasSubstr("backward</td><td data-label=\"Unit\" class=\"text\">h.3</td>"));
}

TEST(PlanPageTest, SaysWhetherItFits) {
  EXPECT_THAT(PageOf(PlanOf(GptJob())), Not(HasSubstr("Fits in")));
  v1::JobSpec spec = GptJob();
  spec.mutable_memory()->set_device_memory("80GiB");
  EXPECT_THAT(PageOf(PlanOf(spec)),
              HasSubstr("<dt>Fits in 80 GiB</dt><dd><span class=\"yes\">yes</span>"));
  spec.mutable_memory()->set_device_memory("8MiB");
  const std::string page = PageOf(PlanOf(spec));
  EXPECT_THAT(page, HasSubstr("<span class=\"no\">no</span>"));
  EXPECT_THAT(page, HasSubstr("<h2>Does it fit?</h2>"));
  EXPECT_THAT(page, HasSubstr(" of 8 MiB."));
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
  v1::Fit* fit = planned.plan.forecast.mutable_fit();
  v1::ActivationForecast* activations = planned.plan.forecast.add_activations();
  v1::Remedy* remedy = fit->add_remedies();
  for (std::string* text :
       {fit->mutable_device(), remedy->mutable_field(), remedy->mutable_value(),
        remedy->mutable_text(), activations->mutable_class_name(), activations->mutable_note(),
        planned.plan.forecast.mutable_largest_message_unit()}) {
    *text = kHostile;
  }
  const std::string page = PageOf(planned);
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
  EXPECT_TRUE(absl::IsInvalidArgument(PlanPage({empty, planned.plan.plan, planned.plan.layout,
                                                planned.plan.forecast, planned.resolved})
                                          .status()));
}

}  // namespace
}  // namespace tessera
