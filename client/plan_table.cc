#include "client/plan_table.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/text_table.h"
#include "common/byte_count.h"
#include "common/dtype.h"

namespace tessera {
namespace {

constexpr size_t kColumns = 80;
constexpr size_t kFingerprintCharacters = 12;
// Of orphans, of ignored parameters and of notes; JSON has the rest.
constexpr size_t kMaxLines = 40;
// Rows of units that are not alike.
constexpr size_t kMaxUnits = 1'000;

// How figures are written, from the most exact to the narrowest.
enum class Style { kExact, kUnits, kShortDTypes, kNarrow };
constexpr std::initializer_list<Style> kStyles = {Style::kExact, Style::kUnits, Style::kShortDTypes,
                                                  Style::kNarrow};

std::string Bytes(int64_t bytes, Style style) {
  return style == Style::kExact ? WithThousands(bytes) : FormatByteCount(bytes);
}

std::string Elements(int64_t numel, Style style) {
  constexpr int64_t kLongest = 1'000'000'000'000;
  if (style != Style::kNarrow || numel < kLongest) return WithThousands(numel);
  return absl::StrFormat("%.2fe12", static_cast<double>(numel) / 1e12);
}

std::string ShortDType(DType dtype) {
  switch (dtype) {
    case v1::FLOAT64:
      return "fp64";
    case v1::FLOAT32:
      return "fp32";
    case v1::FLOAT16:
      return "fp16";
    case v1::BFLOAT16:
      return "bf16";
    case v1::FLOAT8_E4M3FN:
      return "e4m3";
    case v1::FLOAT8_E5M2:
      return "e5m2";
    default:
      return DTypeName(dtype);
  }
}

// The first of `kStyles` in which `render` fits.
template <typename Render>
std::string Fitted(const Render& render) {
  std::string text;
  for (const Style style : kStyles) {
    text = render(style);
    if (WidestLine(text) <= kColumns) break;
  }
  return text;
}

std::string UnitsTable(const v1::Plan& plan, const v1::Layout& layout, Style style) {
  constexpr size_t kNarrowClass = 12;
  std::vector<TextTable::Column> columns = {
      {"UNIT", Align::kLeft}, {"CLASS", Align::kLeft}, {"NUMEL"}};
  const bool short_dtypes = style == Style::kShortDTypes || style == Style::kNarrow;
  if (short_dtypes) {
    columns.push_back({"DTYPES", Align::kLeft});
  } else {
    columns.push_back({"PARAM", Align::kLeft});
    columns.push_back({"REDUCE", Align::kLeft});
  }
  columns.push_back({"SHARDED"});
  columns.push_back({"UNSHARDED"});
  TextTable table(std::move(columns));
  const std::vector<UnitGroup> groups = FoldPlanUnits(plan, layout);
  const size_t shown = std::min(groups.size(), kMaxUnits);
  for (size_t i = 0; i < shown; ++i) {
    const UnitGroup& group = groups[i];
    const v1::Unit& unit = plan.units(group.units[0]);
    const v1::UnitLayout& placed = layout.units(group.units[0]);
    std::vector<std::string> row = {ShortenMiddle(group.name, kColumns)};
    row.push_back(style == Style::kNarrow ? ShortenMiddle(unit.class_name(), kNarrowClass)
                                          : unit.class_name());
    row.push_back(Elements(unit.numel(), style));
    if (short_dtypes) {
      row.push_back(
          absl::StrCat(ShortDType(unit.param_dtype()), "/", ShortDType(unit.reduce_dtype())));
    } else {
      row.push_back(DTypeName(unit.param_dtype()));
      row.push_back(DTypeName(unit.reduce_dtype()));
    }
    row.push_back(Bytes(ShardBytes(unit, placed), style));
    row.push_back(Bytes(WholeBytes(unit, placed), style));
    table.AddRow(std::move(row));
  }
  std::string text = table.ToString();
  if (shown < groups.size()) {
    absl::StrAppend(&text, "... and ", groups.size() - shown, " more, which --output=json has\n");
  }
  return text;
}

// Rows of figures by rank or host; those that are equal and follow each other share one, "0-7 x8".
std::string FoldedTable(std::vector<TextTable::Column> columns,
                        const std::vector<std::vector<std::string>>& rows) {
  TextTable table(std::move(columns));
  for (size_t begin = 0; begin < rows.size();) {
    size_t end = begin + 1;
    while (end < rows.size() &&
           std::equal(rows[begin].begin() + 1, rows[begin].end(), rows[end].begin() + 1)) {
      ++end;
    }
    std::vector<std::string> row = rows[begin];
    if (end - begin > 1) absl::StrAppend(&row[0], "-", rows[end - 1][0], " x", end - begin);
    table.AddRow(std::move(row));
    begin = end;
  }
  return table.ToString();
}

std::string RanksTable(const v1::Forecast& forecast, Style style) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::RankForecast& rank : forecast.ranks()) {
    rows.push_back({absl::StrCat(rank.rank()), Bytes(rank.parameter_bytes(), style),
                    Bytes(rank.gradient_bytes(), style), Bytes(rank.optimizer_bytes(), style),
                    Bytes(rank.undo_bytes(), style), Bytes(rank.private_total_bytes(), style),
                    Bytes(rank.mapped_bytes(), style)});
  }
  return FoldedTable({{"RANK", Align::kLeft},
                      {"PARAMETERS"},
                      {"GRADIENTS"},
                      {"OPTIMIZER"},
                      {"UNDO"},
                      {"TOTAL"},
                      {"MAPPED"}},
                     rows);
}

std::string HostsTable(const v1::Forecast& forecast, Style style) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::HostForecast& host : forecast.hosts()) {
    rows.push_back({absl::StrCat(host.host()), Bytes(host.unsharded_bytes(), style),
                    Bytes(host.unsharded_gradient_bytes(), style),
                    Bytes(host.staging_bytes(), style), Bytes(host.control_bytes(), style),
                    Bytes(host.shared_total_bytes(), style), Bytes(host.mapped_bytes(), style)});
  }
  return FoldedTable({{"HOST", Align::kLeft},
                      {"UNSHARDED"},
                      {"GRADIENTS"},
                      {"STAGING"},
                      {"CONTROL"},
                      {"TOTAL"},
                      {"MAPPED"}},
                     rows);
}

// Nothing where no rank has a GPU. All have the same buffers.
std::string GpuTable(const v1::Forecast& forecast, Style style) {
  if (forecast.ranks().empty() || !forecast.ranks(0).has_gpu()) return "";
  const v1::GpuForecast& gpu = forecast.ranks(0).gpu();
  std::vector<TextTable::Column> columns = {{"UNSHARDED"}, {"GRADIENTS"}};
  std::vector<std::string> row = {Bytes(gpu.unsharded_bytes(), style),
                                  Bytes(gpu.unsharded_gradient_bytes(), style)};
  if (gpu.resharded_bytes() > 0) {
    columns.push_back({"RESHARDED"});
    row.push_back(Bytes(gpu.resharded_bytes(), style));
  }
  columns.insert(columns.end(), {{"STAGING"}, {"TOTAL"}, {"ALLOCATED"}});
  for (const int64_t bytes : {gpu.staging_bytes(), gpu.total_bytes(), gpu.allocated_bytes()}) {
    row.push_back(Bytes(bytes, style));
  }
  TextTable table(std::move(columns));
  table.AddRow(std::move(row));
  return absl::StrCat("\nBytes on each rank's GPU\n", table.ToString());
}

std::string PhaseUnit(const v1::PhaseForecast& phase) {
  if (phase.phase() == v1::PhaseForecast::RESTING) return "-";
  return phase.unit_fqn().empty() ? std::string("(root)") : phase.unit_fqn();
}

// Nothing where the forecast has no phases.
std::string PhasesTable(const v1::Forecast& forecast, Style style) {
  if (forecast.phases().empty()) return "";
  constexpr size_t kLongestUnit = 20;
  TextTable table({{"PHASE", Align::kLeft},
                   {"UNIT", Align::kLeft},
                   {"WHOLE"},
                   {"GRADIENTS"},
                   {"ACTIVATIONS"},
                   {"RANK"},
                   {"HOST"}});
  for (const v1::PhaseForecast& phase : forecast.phases()) {
    table.AddRow(
        {absl::AsciiStrToLower(v1::PhaseForecast::Phase_Name(phase.phase())),
         ShortenMiddle(PhaseUnit(phase), style == Style::kNarrow ? kLongestUnit / 2 : kLongestUnit),
         Bytes(phase.unsharded_bytes(), style), Bytes(phase.unsharded_gradient_bytes(), style),
         Bytes(phase.activation_bytes(), style), Bytes(phase.rank_bytes(), style),
         Bytes(phase.host_bytes(), style)});
  }
  return absl::StrCat("\nBytes in use at the busiest moment of each phase\n", table.ToString());
}

// What is needed and what there is. What would help is among the layout's notes.
std::string FitLines(const v1::Forecast& forecast) {
  if (!forecast.has_fits()) return "";
  std::string verdict = forecast.fits() ? "yes" : "no";
  if (forecast.has_fit()) {
    absl::StrAppend(&verdict, ": ", forecast.fit().device(), " needs ",
                    FormatByteCount(forecast.fit().needed_bytes()), " of ",
                    FormatByteCount(forecast.fit().device_memory_bytes()));
  }
  return WrapText("fits         ", verdict);
}

std::string TrafficLines(const v1::Forecast& forecast) {
  std::string text = absl::StrCat("on a wire    ", WithThousands(forecast.wire_bytes_per_step()),
                                  " bytes a rank and step\n");
  if (forecast.inter_host_wire_bytes_per_step() > 0) {
    absl::StrAppend(
        &text,
        WrapText("             ",
                 absl::StrCat(
                     "of all ranks ", WithThousands(forecast.intra_host_wire_bytes_per_step()),
                     " bytes within hosts, ",
                     WithThousands(forecast.inter_host_wire_bytes_per_step()), " between them")));
  }
  if (forecast.largest_message_bytes() > 0) {
    const std::string& unit = forecast.largest_message_unit();
    absl::StrAppend(&text, WrapText("largest msg  ",
                                    absl::StrCat(WithThousands(forecast.largest_message_bytes()),
                                                 " bytes, of ", unit.empty() ? "(root)" : unit)));
  }
  if (forecast.checkpoint_bytes() > 0) {
    absl::StrAppend(&text, "checkpoint   ", WithThousands(forecast.checkpoint_bytes()),
                    " bytes, export ", WithThousands(forecast.export_bytes()), "\n");
  }
  return text;
}

// A line for each, and one that says how many are left out.
void AppendLines(absl::string_view prefix, const std::vector<std::string>& lines,
                 std::string* text) {
  for (size_t i = 0; i < std::min(lines.size(), kMaxLines); ++i) {
    absl::StrAppend(text, WrapText(prefix, lines[i]));
  }
  if (lines.size() <= kMaxLines) return;
  absl::StrAppend(text, WrapText(prefix, absl::StrCat("... and ", lines.size() - kMaxLines,
                                                      " more, which --output=json has")));
}

std::string LowerOrDash(const std::string& name, bool specified) {
  return specified ? absl::AsciiStrToLower(name) : "-";
}

}  // namespace

int64_t ShardBytes(const v1::Unit& unit, const v1::UnitLayout& placed) {
  return placed.shard_numel() * DTypeBytes(unit.original_dtype());
}

int64_t WholeBytes(const v1::Unit& unit, const v1::UnitLayout& placed) {
  return placed.padded_numel() * DTypeBytes(unit.param_dtype());
}

std::string StrategyText(const v1::Layout& layout) {
  return LowerOrDash(v1::ShardingStrategy_Name(layout.sharding_strategy()),
                     layout.sharding_strategy() != v1::SHARDING_STRATEGY_UNSPECIFIED);
}

std::string UnshardText(const v1::Layout& layout) {
  return LowerOrDash(v1::UnshardMode_Name(layout.unshard_mode()),
                     layout.unshard_mode() != v1::UNSHARD_MODE_UNSPECIFIED);
}

std::string ShortFingerprint(const std::string& fingerprint) {
  return fingerprint.substr(0, kFingerprintCharacters);
}

std::string ActivationsText(const v1::Forecast& forecast) {
  const v1::Forecast::Certainty certainty = forecast.activation_certainty();
  if (certainty == v1::Forecast::UNKNOWN || certainty == v1::Forecast::CERTAINTY_UNSPECIFIED) {
    return "unknown";
  }
  return absl::StrCat(WithThousands(forecast.activation_bytes()), " bytes (",
                      absl::AsciiStrToLower(v1::Forecast::Certainty_Name(certainty)), ")");
}

std::vector<UnitGroup> FoldPlanUnits(const v1::Plan& plan, const v1::Layout& layout) {
  std::vector<std::string> fqns;
  std::vector<std::string> kinds;
  for (int i = 0; i < plan.units_size(); ++i) {
    const v1::Unit& unit = plan.units(i);
    fqns.push_back(unit.fqn());
    kinds.push_back(absl::StrJoin(
        {unit.class_name(), absl::StrCat(unit.numel()), absl::StrCat(unit.original_dtype()),
         absl::StrCat(unit.param_dtype()), absl::StrCat(unit.reduce_dtype()),
         absl::StrCat(layout.units(i).shard_numel()), absl::StrCat(layout.units(i).padded_numel())},
        "\n"));
  }
  return FoldUnits(fqns, kinds);
}

std::string PlanTable(const v1::Plan& plan, const v1::Layout& layout,
                      const v1::Forecast& forecast) {
  std::string text =
      WrapText("model ", absl::StrCat(plan.model_name(), ", ", plan.units_size(),
                                      " units, world size ", layout.world_size(), ", ",
                                      StrategyText(layout), ", unshard ", UnshardText(layout)));
  absl::StrAppend(&text, "plan ", ShortFingerprint(plan.plan_fingerprint()), ", layout ",
                  ShortFingerprint(layout.layout_fingerprint()),
                  "\n\nElements of each unit, and bytes of a shard and of the whole\n",
                  Fitted([&](Style style) { return UnitsTable(plan, layout, style); }),
                  "\nBytes of a rank's own memory\n",
                  Fitted([&](Style style) { return RanksTable(forecast, style); }),
                  Fitted([&](Style style) { return GpuTable(forecast, style); }),
                  "\nBytes that the ranks of a host share\n",
                  Fitted([&](Style style) { return HostsTable(forecast, style); }),
                  Fitted([&](Style style) { return PhasesTable(forecast, style); }),
                  "\nactivations  ", ActivationsText(forecast), "\n", TrafficLines(forecast),
                  FitLines(forecast));
  for (const auto& [prefix, fqns] :
       {std::pair("orphan  ", &plan.orphans()), std::pair("ignored  ", &plan.ignored())}) {
    const std::vector<std::string> names(fqns->begin(), fqns->end());
    AppendLines(prefix, FoldFqns(names), &text);
  }
  std::vector<std::string> notes(plan.notes().begin(), plan.notes().end());
  notes.insert(notes.end(), layout.notes().begin(), layout.notes().end());
  AppendLines("note: ", notes, &text);
  return text;
}

std::string ExplainText(const v1::ExplainModuleResponse& explained) {
  const auto name = [](const std::string& fqn) {
    return fqn.empty() ? std::string("(root)") : ShortenMiddle(fqn, kColumns);
  };
  std::string text = absl::StrCat(name(explained.fqn()), "\n");
  std::string verdict = "a unit";
  if (!explained.is_unit()) {
    verdict = absl::StrCat("not a unit; what it holds is in ", name(explained.unit_fqn()));
  }
  absl::StrAppend(&text, WrapText("class  ", explained.class_name()), WrapText("is     ", verdict));
  for (const std::string& reason : explained.reasons()) {
    absl::StrAppend(&text, WrapText("- ", reason));
  }
  return text;
}

}  // namespace tessera
