#include "weft/tools/simulate/replay/steps.h"

#include <cmath>
#include <cstddef>
#include <utility>

#include "weft/tools/simulate/check.h"
#include "weft/tools/simulate/cost_terms.h"
#include "weft/tools/simulate/median.h"

namespace weft::simulator {

bool Replayed::is_right() const {
  return !(measured > 0) || std::abs(seconds / measured - 1) <= kTolerance;
}

double RecordedSteps::seconds() const { return median(step_seconds()); }

std::string RecordedSteps::fault_of(const RecordedSteps& run, const Setting& setting) const {
  const auto over = [](bool thin) { return thin ? " over a thin link" : ""; };
  const std::string got = run.model({}) + over(run.has_thin_links);
  const std::string expected = model(setting) + over(setting.thin_link.has_value());
  return got == expected ? "" : concat("is of ", got, ", expected ", expected);
}

train::PointCurve RecordedSteps::curve(std::string name, const std::vector<double>& xs,
                                       const std::vector<Setting>& settings) const {
  train::PointCurve curve{std::move(name), {}};
  for (std::size_t i = 0; i < xs.size(); ++i) {
    curve.points.emplace_back(xs[i], replay(settings[i]).seconds * 1e3);
  }
  return curve;
}

train::LogLogChart RecordedSteps::over_bandwidth(const std::vector<Setting>& lines) const {
  train::LogLogChart chart{concat("Extrapolated: ", to_string(engine()), " on ", ranks(),
                                  " ranks, links of another machine"),
                           "GB/s of each link",
                           "ms of a step",
                           {}};
  std::vector<double> rates;
  for (double rate = 0.0625; rate <= 64; rate *= 4) rates.push_back(rate);
  for (const Setting& line : lines) {
    std::vector<Setting> settings(rates.size(), line);
    for (std::size_t i = 0; i < rates.size(); ++i) settings[i].bytes_per_second = rates[i] * 1e9;
    chart.curves.push_back(curve(line.text, rates, settings));
  }
  return chart;
}

train::LogLogChart RecordedSteps::over_ranks(const std::vector<Setting>& lines) const {
  train::LogLogChart chart{concat("Extrapolated: ", to_string(engine()), ", recorded on ", ranks(),
                                  " ranks, on more of them"),
                           "ranks, each with as many rows as now",
                           "ms of a step",
                           {}};
  std::vector<double> counts;
  for (int count = 2; count <= 1024; count *= 2) counts.push_back(count);
  for (const Setting& line : lines) {
    std::vector<Setting> settings(counts.size(), line);
    for (std::size_t i = 0; i < counts.size(); ++i) settings[i].ranks = static_cast<int>(counts[i]);
    chart.curves.push_back(curve(line.text, counts, settings));
  }
  return chart;
}

}  // namespace weft::simulator
