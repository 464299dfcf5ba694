#include "client/plan_compare.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/html.h"
#include "client/plan_table.h"
#include "client/text_table.h"
#include "common/byte_count.h"

namespace tessera {
namespace {

constexpr size_t kColumns = 80;

// A figure is a number or a text; what a plan does not say is neither.
struct Figure {
  const char* key;
  const char* label;
  bool bytes = false;
  std::optional<int64_t> number = {};
  std::string text = {};
};

template <typename Messages, typename Get>
int64_t Largest(const Messages& messages, const Get& get) {
  int64_t largest = 0;
  for (const auto& message : messages) largest = std::max<int64_t>(largest, (message.*get)());
  return largest;
}

// Position of the unit with the most elements; -1 where there is none.
int LargestUnit(const v1::Plan& plan) {
  int largest = -1;
  for (int i = 0; i < plan.units_size(); ++i) {
    if (largest == -1 || plan.units(i).numel() > plan.units(largest).numel()) largest = i;
  }
  return largest;
}

// Of every plan the same figures in the same order.
std::vector<Figure> FiguresOf(const v1::CreatePlanResponse& response) {
  const v1::Plan& plan = response.plan();
  const v1::Layout& layout = response.layout();
  const v1::Forecast& forecast = response.forecast();
  std::vector<Figure> figures;
  const auto text = [&](const char* key, const char* label, std::string value) {
    figures.push_back({.key = key, .label = label, .text = std::move(value)});
  };
  const auto number = [&](const char* key, const char* label, std::optional<int64_t> value,
                          bool bytes = true) {
    figures.push_back({.key = key, .label = label, .bytes = bytes, .number = value});
  };
  const int largest = LargestUnit(plan);
  int64_t numel = 0;
  for (const v1::Unit& unit : plan.units()) numel += unit.numel();
  text("model", "model", plan.model_name());
  text("plan_fingerprint", "plan", ShortFingerprint(plan.plan_fingerprint()));
  text("strategy", "strategy", StrategyText(layout));
  text("unshard", "unshard", UnshardText(layout));
  number("world_size", "world size", layout.world_size(), false);
  number("units", "units", plan.units_size(), false);
  number("numel", "elements in units", numel, false);
  const bool root = largest != -1 && plan.units(largest).fqn().empty();
  text("largest_unit", "largest unit",
       largest == -1 ? "-" : (root ? "(root)" : plan.units(largest).fqn()));
  number("largest_unit_bytes", "  whole",
         largest == -1 ? 0 : WholeBytes(plan.units(largest), layout.units(largest)));
  using Rank = v1::RankForecast;
  number("rank_parameter_bytes", "a rank: parameters",
         Largest(forecast.ranks(), &Rank::parameter_bytes));
  number("rank_gradient_bytes", "  gradients", Largest(forecast.ranks(), &Rank::gradient_bytes));
  number("rank_optimizer_bytes", "  optimizer", Largest(forecast.ranks(), &Rank::optimizer_bytes));
  number("rank_total_bytes", "  all its own",
         Largest(forecast.ranks(), &Rank::private_total_bytes));
  using Host = v1::HostForecast;
  number("host_unsharded_bytes", "a host: whole units",
         Largest(forecast.hosts(), &Host::unsharded_bytes));
  number("host_gradient_bytes", "  gradients",
         Largest(forecast.hosts(), &Host::unsharded_gradient_bytes));
  number("host_total_bytes", "  all shared", Largest(forecast.hosts(), &Host::shared_total_bytes));
  const bool known = forecast.activation_certainty() == v1::Forecast::EXACT ||
                     forecast.activation_certainty() == v1::Forecast::ESTIMATED;
  number("activation_bytes", "activations",
         known ? std::optional<int64_t>(forecast.activation_bytes()) : std::nullopt);
  number("wire_bytes_per_step", "a rank sends a step", forecast.wire_bytes_per_step());
  text("fits", "fits", forecast.has_fits() ? (forecast.fits() ? "yes" : "no") : "-");
  return figures;
}

std::optional<int64_t> Difference(const Figure& a, const Figure& b) {
  if (!a.number.has_value() || !b.number.has_value()) return std::nullopt;
  return *b.number - *a.number;
}

bool IsText(const Figure& figure) { return !figure.text.empty(); }

std::string Amount(int64_t value, bool in_units) {
  if (!in_units) return WithThousands(value);
  return value < 0 ? absl::StrCat("-", FormatByteCount(-value)) : FormatByteCount(value);
}

// Of names what there is room for; figures are never shortened.
std::string Cell(const Figure& figure, bool in_units, size_t longest_name) {
  if (IsText(figure)) return ShortenMiddle(figure.text, longest_name);
  if (!figure.number.has_value()) return "-";
  return Amount(*figure.number, in_units && figure.bytes);
}

std::string DifferenceCell(const Figure& a, const Figure& b, bool in_units) {
  if (IsText(a) || IsText(b)) return a.text == b.text ? "" : "differs";
  const std::optional<int64_t> difference = Difference(a, b);
  if (!difference.has_value()) return "-";
  return absl::StrCat(*difference > 0 ? "+" : "", Amount(*difference, in_units && a.bytes));
}

// Label, A, B, difference.
std::vector<std::vector<std::string>> Rows(const ComparedPlan& a, const ComparedPlan& b,
                                           bool in_units, size_t longest_name) {
  const std::vector<Figure> left = FiguresOf(a.plan);
  const std::vector<Figure> right = FiguresOf(b.plan);
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < left.size(); ++i) {
    rows.push_back({left[i].label, Cell(left[i], in_units, longest_name),
                    Cell(right[i], in_units, longest_name),
                    DifferenceCell(left[i], right[i], in_units)});
  }
  return rows;
}

std::string Render(const ComparedPlan& a, const ComparedPlan& b, bool in_units) {
  constexpr size_t kLongestName = 20;
  TextTable table({{"", Align::kLeft}, {"A"}, {"B"}, {"DIFFERENCE"}});
  for (std::vector<std::string>& row : Rows(a, b, in_units, kLongestName)) {
    table.AddRow(std::move(row));
  }
  return table.ToString();
}

nlohmann::json JsonOf(const Figure& figure) {
  if (figure.key == std::string("fits")) {
    return figure.text == "-" ? nlohmann::json(nullptr) : nlohmann::json(figure.text == "yes");
  }
  if (figure.number.has_value()) return absl::StrCat(*figure.number);
  if (IsText(figure)) return figure.text;
  return nullptr;
}

}  // namespace

std::string CompareTable(const ComparedPlan& a, const ComparedPlan& b) {
  std::string table = Render(a, b, /*in_units=*/false);
  if (WidestLine(table) > kColumns) table = Render(a, b, /*in_units=*/true);
  return absl::StrCat(WrapText("A  ", a.source), WrapText("B  ", b.source), "\n", table);
}

std::string CompareJson(const ComparedPlan& a, const ComparedPlan& b) {
  nlohmann::ordered_json document = {{"a", {{"source", a.source}}},
                                     {"b", {{"source", b.source}}},
                                     {"difference", nlohmann::ordered_json::object()}};
  const std::vector<Figure> left = FiguresOf(a.plan);
  const std::vector<Figure> right = FiguresOf(b.plan);
  for (size_t i = 0; i < left.size(); ++i) {
    document["a"][left[i].key] = JsonOf(left[i]);
    document["b"][left[i].key] = JsonOf(right[i]);
    const std::optional<int64_t> difference = Difference(left[i], right[i]);
    if (difference.has_value()) document["difference"][left[i].key] = absl::StrCat(*difference);
  }
  // A file's name need not be UTF-8.
  return document.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string ComparePage(const ComparedPlan& a, const ComparedPlan& b) {
  std::vector<std::vector<std::string>> rows = Rows(a, b, /*in_units=*/true, a.source.max_size());
  for (std::vector<std::string>& row : rows) {
    for (std::string& cell : row) cell = HtmlText(cell);
  }
  const std::string body = absl::StrCat(
      "<h1>Two plans</h1>\n<main>\n<section>\n<dl class=\"facts\"><div><dt>A</dt><dd>",
      HtmlText(a.source), "</dd></div>\n<div><dt>B</dt><dd>", HtmlText(b.source),
      "</dd></div></dl>\n</section>\n<section>\n",
      HtmlTable({{"Figure", true}, {"A"}, {"B"}, {"Difference"}}, rows), "</section>\n</main>\n");
  return HtmlPage("Two plans", body, HtmlScript::kNone);
}

}  // namespace tessera
