#include "client/plan_page_forecast.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/html.h"
#include "client/text_table.h"
#include "common/byte_count.h"

namespace tessera {
namespace {

constexpr size_t kMaxRows = 300;

std::string Bytes(int64_t bytes) { return FormatByteCount(bytes); }

// Ranks or hosts, from 0; equal neighbours in one row.
std::string NumberedTable(const std::vector<HtmlColumn>& columns,
                          const std::vector<std::vector<std::string>>& cells) {
  std::vector<std::vector<std::string>> rows;
  size_t all = 0;
  for (size_t begin = 0; begin < cells.size(); ++all) {
    size_t end = begin + 1;
    while (end < cells.size() && cells[end] == cells[begin]) ++end;
    std::vector<std::string> row = cells[begin];
    row.insert(row.begin(), end - begin > 1 ? absl::StrCat(begin, "-", end - 1, " x", end - begin)
                                            : absl::StrCat(begin));
    if (rows.size() < kMaxRows) rows.push_back(std::move(row));
    begin = end;
  }
  return HtmlTable(columns, rows) + HtmlMore(all, rows.size());
}

std::string RanksSection(const v1::Forecast& forecast) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::RankForecast& rank : forecast.ranks()) {
    rows.push_back({Bytes(rank.parameter_bytes()), Bytes(rank.gradient_bytes()),
                    Bytes(rank.optimizer_bytes()), Bytes(rank.undo_bytes()),
                    Bytes(rank.mapped_bytes())});
  }
  return HtmlSection(
      "Bytes of a rank's own memory",
      NumberedTable(
          {{"Rank", true}, {"Parameters"}, {"Gradients"}, {"Optimizer"}, {"Undo"}, {"Mapped"}},
          rows));
}

// All GPUs have the same buffers.
std::string GpuSection(const v1::Forecast& forecast) {
  if (forecast.ranks().empty() || !forecast.ranks(0).has_gpu()) return "";
  const v1::GpuForecast& gpu = forecast.ranks(0).gpu();
  return HtmlSection(
      "Bytes on each rank's GPU",
      HtmlTable({{"Unsharded"}, {"Gradients"}, {"Resharded"}, {"Staging"}, {"Allocated"}},
                {{Bytes(gpu.unsharded_bytes()), Bytes(gpu.unsharded_gradient_bytes()),
                  Bytes(gpu.resharded_bytes()), Bytes(gpu.staging_bytes()),
                  Bytes(gpu.allocated_bytes())}}));
}

std::string HostsSection(const v1::Forecast& forecast) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::HostForecast& host : forecast.hosts()) {
    rows.push_back({Bytes(host.unsharded_bytes()), Bytes(host.unsharded_gradient_bytes()),
                    Bytes(host.resharded_bytes()), Bytes(host.staging_bytes()),
                    Bytes(host.control_bytes()), Bytes(host.mapped_bytes())});
  }
  return HtmlSection("Bytes that the ranks of a host share", NumberedTable({{"Host", true},
                                                                            {"Unsharded"},
                                                                            {"Gradients"},
                                                                            {"Resharded"},
                                                                            {"Staging"},
                                                                            {"Control"},
                                                                            {"Mapped"}},
                                                                           rows));
}

std::string ActivationsSection(const v1::Forecast& forecast) {
  if (forecast.activations().empty()) return "";
  std::vector<std::vector<std::string>> rows;
  for (const v1::ActivationForecast& one : forecast.activations()) {
    if (rows.size() == kMaxRows) break;
    rows.push_back({HtmlText(one.class_name()), WithThousands(one.modules()), Bytes(one.bytes()),
                    absl::AsciiStrToLower(v1::Forecast::Certainty_Name(one.certainty())),
                    HtmlText(one.note(), kLongestSentence)});
  }
  return HtmlSection(
      "Activations of a rank",
      HtmlTable({{"Class", true}, {"Modules"}, {"Bytes"}, {"Known", true}, {"Note", true}}, rows) +
          HtmlMore(static_cast<size_t>(forecast.activations_size()), rows.size()));
}

std::string TrafficSection(const v1::Forecast& forecast) {
  if (forecast.collectives_per_step() == 0) return "";
  const std::string& unit = forecast.largest_message_unit();
  return HtmlSection(
      "A step's traffic, and checkpoints",
      HtmlTable(
          {{"", true}, {"Bytes"}},
          {{"sent within hosts, all ranks", Bytes(forecast.intra_host_wire_bytes_per_step())},
           {"sent between hosts, all ranks", Bytes(forecast.inter_host_wire_bytes_per_step())},
           {absl::StrCat("largest message, of ", unit.empty() ? "(root)" : HtmlText(unit)),
            Bytes(forecast.largest_message_bytes())},
           {"a checkpoint", Bytes(forecast.checkpoint_bytes())},
           {"an export", Bytes(forecast.export_bytes())}}));
}

}  // namespace

std::string FitSection(const v1::Forecast& forecast) {
  if (!forecast.has_fit()) return "";
  const v1::Fit& fit = forecast.fit();
  std::string html = HtmlParagraph(absl::StrCat(fit.device(), " needs ", Bytes(fit.needed_bytes()),
                                                " of ", Bytes(fit.device_memory_bytes()),
                                                forecast.fits() ? ": it fits." : "."));
  std::vector<std::vector<std::string>> rows;
  for (const v1::Remedy& remedy : fit.remedies()) {
    rows.push_back({HtmlText(absl::StrCat(remedy.field(), " ", remedy.value())),
                    HtmlText(remedy.text(), kLongestSentence), Bytes(remedy.needed_bytes()),
                    remedy.fits() ? "yes" : "no"});
  }
  if (!rows.empty()) {
    absl::StrAppend(
        &html, HtmlTable({{"Change", true}, {"What it does", true}, {"Needs"}, {"Fits"}}, rows));
  }
  return HtmlSection("Does it fit?", html);
}

std::string ForecastSections(const v1::Forecast& forecast) {
  return absl::StrCat(RanksSection(forecast), GpuSection(forecast), HostsSection(forecast),
                      TrafficSection(forecast), ActivationsSection(forecast));
}

}  // namespace tessera
