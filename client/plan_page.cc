#include "client/plan_page.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/html.h"
#include "client/module_tree.h"
#include "client/plan_page_forecast.h"
#include "client/plan_table.h"
#include "client/step_chart.h"
#include "client/step_memory.h"
#include "client/text_table.h"
#include "common/byte_count.h"
#include "common/dtype.h"
#include "common/status_macros.h"
#include "coordinator/activations.h"
#include "coordinator/timeline.h"

namespace tessera {
namespace {

constexpr int kMaxPoints = 200;
constexpr size_t kMaxRows = 300;
constexpr int kColours = 7;

// A class of the style sheet for what belongs to a group of units.
std::string ColourOf(int group, absl::Span<const UnitGroup> groups) {
  if (group < 0) return "none";
  return groups[group].name == "(root)" ? "root" : absl::StrCat("u", group % kColours);
}

std::string Chip(const std::string& colour) {
  return absl::StrCat("<i class=\"chip ", colour, "\"></i>");
}

// A list of texts; of long ones the first kMaxRows.
std::string List(const std::vector<std::string>& texts) {
  const size_t shown = std::min(texts.size(), kMaxRows);
  std::string items;
  for (size_t i = 0; i < shown; ++i) {
    absl::StrAppend(&items, HtmlElement("li", HtmlText(texts[i], kLongestSentence)), "\n");
  }
  return HtmlElement("ul class=\"notes\"", items) + HtmlMore(texts.size(), shown);
}

class TreeHtml {
 public:
  TreeHtml(const ModuleTree& tree, absl::Span<const UnitGroup> groups)
      : tree_(tree), groups_(groups) {}

  std::string ToString() const {
    std::string html = "<div class=\"tree\">\n<ul>\n";
    Append(0, /*depth=*/0, kOrphan, &html);
    absl::StrAppend(&html, "</ul>\n</div>\n");
    return html;
  }

 private:
  // `around`: the group of the enclosing module, which is that of a module without parameters.
  void Append(int index, int depth, int around, std::string* html) const {
    constexpr int kOpenDepth = 2;
    constexpr size_t kOpenChildren = 12;
    const ModuleTree::Node& node = tree_.nodes()[index];
    const int group = node.group == kNoParameters ? around : node.group;
    const std::string colour = ColourOf(group, groups_);
    absl::StrAppend(html, "<li data-bytes=\"", node.bytes, "\" data-colour=\"", colour, "\"");
    if (node.own_bytes > 0) absl::StrAppend(html, " data-own=\"", node.own_bytes, "\"");
    if (node.hidden_bytes > 0) absl::StrAppend(html, " data-hidden=\"", node.hidden_bytes, "\"");
    if (group >= 0) absl::StrAppend(html, " data-unit=\"", HtmlText(groups_[group].name), "\"");
    absl::StrAppend(html, ">");
    const bool leaf = node.children.empty() && node.hidden_modules == 0;
    if (leaf) {
      absl::StrAppend(html, HtmlElement("div class=\"row leaf\" tabindex=\"0\"", Row(node, colour)),
                      "</li>\n");
      return;
    }
    const bool open = depth < kOpenDepth && node.children.size() <= kOpenChildren;
    absl::StrAppend(html, open ? "<details open>" : "<details>",
                    HtmlElement("summary class=\"row\"", Row(node, colour)), "<ul>\n");
    for (const int child : node.children) Append(child, depth + 1, group, html);
    if (node.hidden_modules > 0) {
      absl::StrAppend(html, "<li class=\"more\">", WithThousands(node.hidden_modules),
                      " more modules, ", FormatByteCount(node.hidden_bytes), "</li>\n");
    }
    absl::StrAppend(html, "</ul></details></li>\n");
  }

  static std::string Row(const ModuleTree::Node& node, const std::string& colour) {
    std::string row = Chip(colour) + HtmlElement("b", node.name.empty() ? std::string("(root)")
                                                                        : HtmlText(node.name));
    if (node.siblings > 1) {
      absl::StrAppend(&row, " <span class=\"times\">x", node.siblings, "</span>");
    }
    absl::StrAppend(&row, " ", HtmlElement("span class=\"class\"", HtmlText(node.class_name)));
    if (node.is_unit) absl::StrAppend(&row, " <em>unit</em>");
    absl::StrAppend(&row, " ", HtmlElement("span class=\"size\"", FormatByteCount(node.bytes)));
    return row;
  }

  const ModuleTree& tree_;
  const absl::Span<const UnitGroup> groups_;
};

std::string Facts(const PlanPageInput& input, const StepMemory& memory) {
  int64_t numel = 0;
  for (const v1::Unit& unit : input.plan.units()) numel += unit.numel();
  std::string facts;
  const auto add = [&](absl::string_view name, absl::string_view html) {
    absl::StrAppend(&facts, "<div>", HtmlElement("dt", HtmlText(name)), HtmlElement("dd", html),
                    "</div>\n");
  };
  add("Parameters in units", WithThousands(numel));
  add("Units", WithThousands(input.plan.units_size()));
  add("World size", WithThousands(input.layout.world_size()));
  add("Strategy", HtmlText(StrategyText(input.layout)));
  add("Unshard", HtmlText(UnshardText(input.layout)));
  add("A rank's own memory", FormatByteCount(memory.fixed_bytes()));
  if (!input.forecast.hosts().empty()) {
    add("Shared by a host's ranks", FormatByteCount(input.forecast.hosts(0).shared_total_bytes()));
  }
  add("Activations", HtmlText(ActivationsText(input.forecast)));
  add("On a wire, a rank and step", FormatByteCount(input.forecast.wire_bytes_per_step()));
  if (input.forecast.has_fits()) {
    const bool fits = input.forecast.fits();
    add(absl::StrCat("Fits in ", FormatByteCount(input.forecast.fit().device_memory_bytes())),
        HtmlElement(fits ? "span class=\"yes\"" : "span class=\"no\"", fits ? "yes" : "no"));
  }
  add("Plan", HtmlText(ShortFingerprint(input.plan.plan_fingerprint())));
  add("Layout", HtmlText(ShortFingerprint(input.layout.layout_fingerprint())));
  return HtmlElement("dl class=\"facts\"", facts) + "\n";
}

std::string UnitsTable(const PlanPageInput& input, absl::Span<const UnitGroup> groups) {
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < std::min(groups.size(), kMaxRows); ++i) {
    const v1::Unit& unit = input.plan.units(groups[i].units[0]);
    const v1::UnitLayout& placed = input.layout.units(groups[i].units[0]);
    rows.push_back({Chip(ColourOf(static_cast<int>(i), groups)) + HtmlText(groups[i].name),
                    HtmlText(unit.class_name()), WithThousands(unit.numel()),
                    DTypeName(unit.original_dtype()), DTypeName(unit.param_dtype()),
                    DTypeName(unit.reduce_dtype()), FormatByteCount(ShardBytes(unit, placed)),
                    FormatByteCount(WholeBytes(unit, placed))});
  }
  return HtmlTable({{"Unit", true},
                    {"Class", true},
                    {"Elements"},
                    {"Model", true},
                    {"Compute", true},
                    {"Reduce", true},
                    {"Shard"},
                    {"Whole"}},
                   rows) +
         HtmlMore(groups.size(), rows.size());
}

std::string PhaseName(v1::PhaseForecast::Phase phase) {
  if (phase == v1::PhaseForecast::RESTING) return "between steps";
  return absl::AsciiStrToLower(v1::PhaseForecast::Phase_Name(phase));
}

std::string PointsTable(const PlanPageInput& input, const StepMemory& memory) {
  std::vector<std::vector<std::string>> rows;
  for (const StepPoint& point : memory.points) {
    const std::string fqn = point.unit < 0 ? "" : input.plan.units(point.unit).fqn();
    rows.push_back({PhaseName(point.phase),
                    point.unit >= 0 && fqn.empty() ? std::string("(root)") : HtmlText(fqn),
                    FormatByteCount(point.unsharded_bytes), FormatByteCount(GradientBytes(point)),
                    FormatByteCount(point.activation_bytes),
                    FormatByteCount(memory.fixed_bytes() + LiveBytes(point))});
  }
  return absl::StrCat(
      "<details id=\"points\"><summary>Figures of each point</summary>\n",
      HtmlTable(
          {{"Phase", true}, {"Unit", true}, {"Whole"}, {"Gradients"}, {"Activations"}, {"In use"}},
          rows),
      "</details>\n");
}

std::string Axis(const StepMemory& memory) {
  const auto forward =
      std::count_if(memory.points.begin(), memory.points.end(), [](const StepPoint& point) {
        return point.phase == v1::PhaseForecast::RESTING ||
               point.phase == v1::PhaseForecast::FORWARD;
      });
  const auto all = static_cast<int64_t>(memory.points.size());
  return HtmlElement("div class=\"axis\" aria-hidden=\"true\"",
                     absl::StrCat("<span style=\"flex:", forward, "\">forward</span>",
                                  "<span style=\"flex:", all - forward,
                                  "\">backward and reduction</span>")) +
         "\n";
}

std::string Legend(const StepMemory& memory) {
  int64_t activations = 0;
  for (const StepPoint& point : memory.points) {
    activations = std::max(activations, point.activation_bytes);
  }
  std::string legend;
  int number = 0;
  for (const auto& [name, bytes] :
       {std::pair("parameter shards", memory.parameter_bytes),
        std::pair("reduced gradients", memory.reduced_gradient_bytes),
        std::pair("optimizer", memory.optimizer_bytes),
        std::pair("undo, record, buffers", memory.other_bytes),
        std::pair("whole units, planned", memory.planned_unsharded_bytes),
        std::pair("gradients not reduced, planned", memory.planned_gradient_bytes),
        std::pair("activations, at most", activations)}) {
    absl::StrAppend(&legend, HtmlElement("li", absl::StrCat(Chip(absl::StrCat("m", number++)), name,
                                                            " ", FormatByteCount(bytes))));
  }
  return HtmlElement("ul class=\"legend\"", legend);
}

std::string StepSection(const PlanPageInput& input, const StepMemory& memory) {
  const bool known = input.forecast.activation_certainty() == v1::Forecast::EXACT ||
                     input.forecast.activation_certainty() == v1::Forecast::ESTIMATED;
  std::string text = absl::StrCat("In use at most ", FormatByteCount(memory.peak_bytes()),
                                  known ? ", with activations. " : ", without all activations. ",
                                  FormatByteCount(memory.planned_bytes()),
                                  " are mapped before the first step; whole units are shared by "
                                  "the ranks of a host that are in one shard group.");
  if (input.layout.device() == v1::CUDA) {
    absl::StrAppend(&text, " Shards and optimizer lie in the host's memory, the rest on the GPU.");
  }
  return HtmlSection(
      "Memory over a step, of one rank",
      absl::StrCat(HtmlParagraph(text), "<div class=\"chart\"><span class=\"top\">upper edge ",
                   FormatByteCount(StepChartTop(memory)), "; dashed: planned ",
                   FormatByteCount(memory.planned_bytes()), "</span>\n",
                   StepChart(memory, absl::StrCat("Memory in use over a step, at most ",
                                                  FormatByteCount(memory.peak_bytes()))),
                   "</div>\n", Axis(memory), Legend(memory),
                   "\n<input id=\"scrub\" type=\"range\" min=\"0\" value=\"0\" "
                   "aria-label=\"Point of the step\" hidden>\n<output id=\"reading\"></output>\n",
                   PointsTable(input, memory)));
}

std::string Lists(const v1::Plan& plan, const v1::Layout& layout) {
  std::string html;
  std::vector<std::string> notes(plan.notes().begin(), plan.notes().end());
  notes.insert(notes.end(), layout.notes().begin(), layout.notes().end());
  if (!notes.empty()) absl::StrAppend(&html, HtmlSection("Notes", List(notes)));
  for (const auto& [heading, fqns] :
       {std::pair("In no unit", &plan.orphans()), std::pair("Ignored", &plan.ignored())}) {
    if (fqns->empty()) continue;
    const std::vector<std::string> names(fqns->begin(), fqns->end());
    absl::StrAppend(&html, HtmlSection(heading, List(FoldFqns(names))));
  }
  return html;
}

}  // namespace

absl::StatusOr<std::string> PlanPage(const PlanPageInput& input) {
  const std::vector<UnitGroup> groups = FoldPlanUnits(input.plan, input.layout);
  TESSERA_ASSIGN_OR_RETURN(const ModuleTree tree,
                           ModuleTree::Create(input.model, input.plan, groups));
  const Activations activations =
      ForecastActivations(input.model, input.plan, input.resolved, input.layout.world_size());
  const StepMemory memory = MakeStepMemory(StepTimeline(input.plan, input.layout, activations),
                                           input.layout, input.forecast, kMaxPoints);
  const std::string& name = input.plan.model_name();
  const std::string body = absl::StrCat(
      HtmlElement("h1", HtmlText(name.empty() ? "a model without a name" : name)), "\n<main>\n",
      HtmlSection("Plan", Facts(input, memory)),
      HtmlSection(
          "Bytes by module",
          absl::StrCat(HtmlParagraph("Areas are bytes in the model's dtypes, colours are units, "
                                     "hatched is what is in no unit. A tile opens its module; "
                                     "arrow keys go from tile to tile, Escape goes back."),
                       "<noscript>", HtmlParagraph("The tree below has the same figures."),
                       "</noscript>\n<nav id=\"path\" aria-label=\"Shown module\"></nav>\n"
                       "<div id=\"map\"></div>\n<output id=\"told\"></output>\n")),
      HtmlSection("Modules", TreeHtml(tree, groups).ToString()), StepSection(input, memory),
      HtmlSection("Units", UnitsTable(input, groups)), FitSection(input.forecast),
      ForecastSections(input.forecast), Lists(input.plan, input.layout), "</main>\n");
  return HtmlPage(absl::StrCat("Plan of ", name), body, HtmlScript::kPlan);
}

}  // namespace tessera
