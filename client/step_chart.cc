#include "client/step_chart.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/html.h"

namespace tessera {
namespace {

constexpr double kWidth = 1000;
constexpr double kHeight = 300;

bool IsForward(const StepPoint& point) { return point.phase == v1::PhaseForecast::FORWARD; }

using BytesOf = std::function<int64_t(const StepPoint&)>;

class Chart {
 public:
  Chart(const StepMemory& memory, double top) : memory_(memory), top_(top) {}

  // The area between two stacks, as one path: the lower edge to the right, the upper one back.
  std::string Band(int number, const BytesOf& below, const BytesOf& bytes) const {
    const size_t count = memory_.points.size();
    std::string there;
    std::string back;
    for (size_t i = 0; i < count; ++i) {
      const StepPoint& point = memory_.points[i];
      const int64_t low = below(point);
      const bool same = i > 0 && low == below(memory_.points[i - 1]) &&
                        bytes(point) == bytes(memory_.points[i - 1]);
      if (same) continue;
      const double left = X(i, count);
      absl::StrAppend(&there, there.empty() ? absl::StrFormat("M%.1f %.2f", left, Y(low))
                                            : absl::StrFormat("H%.1fV%.2f", left, Y(low)));
      back = absl::StrCat(absl::StrFormat("V%.2fH%.1f", Y(low + bytes(point)), left), back);
    }
    return absl::StrCat("<path class=\"m", number, "\" d=\"", there,
                        absl::StrFormat("H%.1f", kWidth), back, "Z\"/>\n");
  }

  // Lines keep their width however the chart is stretched.
  std::string Line(absl::string_view attributes, int64_t bytes) const {
    return absl::StrFormat(
        "<line %s vector-effect=\"non-scaling-stroke\" x1=\"0\" x2=\"%.0f\" y1=\"%.2f\" "
        "y2=\"%.2f\"/>\n",
        attributes, kWidth, Y(bytes), Y(bytes));
  }

  std::string Cut(absl::string_view attributes, size_t before) const {
    const double x = X(before, memory_.points.size());
    return absl::StrFormat(
        "<line %s vector-effect=\"non-scaling-stroke\" x1=\"%.1f\" x2=\"%.1f\" y1=\"0\" "
        "y2=\"%.0f\"/>\n",
        attributes, x, x, kHeight);
  }

 private:
  static double X(size_t point, size_t count) {
    return kWidth * static_cast<double>(point) / static_cast<double>(count);
  }
  double Y(int64_t bytes) const { return kHeight * (1 - static_cast<double>(bytes) / top_); }

  const StepMemory& memory_;
  const double top_;
};

}  // namespace

int64_t StepChartTop(const StepMemory& memory) {
  const int64_t top = std::max<int64_t>({1, memory.planned_bytes(), memory.peak_bytes()});
  return top + top / 20;
}

std::string StepChart(const StepMemory& memory, const std::string& label) {
  const Chart chart(memory, static_cast<double>(StepChartTop(memory)));
  std::string svg = absl::StrCat(
      "<svg viewBox=\"0 0 1000 300\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"",
      HtmlText(label), "\">\n");
  BytesOf below = [](const StepPoint&) { return int64_t{0}; };
  int number = 0;
  const auto add = [&](const BytesOf& bytes) {
    absl::StrAppend(&svg, chart.Band(number++, below, bytes));
    below = [lower = std::move(below), bytes](const StepPoint& point) {
      return lower(point) + bytes(point);
    };
  };
  for (const int64_t bytes : {memory.parameter_bytes, memory.reduced_gradient_bytes,
                              memory.optimizer_bytes, memory.other_bytes}) {
    add([=](const StepPoint&) { return bytes; });
  }
  add([](const StepPoint& point) { return point.unsharded_bytes; });
  add(GradientBytes);
  add([](const StepPoint& point) { return point.activation_bytes; });
  for (size_t i = 1; i < memory.points.size(); ++i) {
    if (IsForward(memory.points[i]) != IsForward(memory.points[i - 1])) {
      absl::StrAppend(&svg, chart.Cut("class=\"cut\"", i));
    }
  }
  absl::StrAppend(&svg, chart.Line("class=\"planned\"", memory.planned_bytes()),
                  chart.Cut("id=\"cursor\" class=\"planned\"", 0), "</svg>\n");
  return svg;
}

}  // namespace tessera
