#include "weft/tools/simulate/scaling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/train/charts.h"

namespace weft::simulator {
namespace {

using nlohmann::json;
using weft::detail::concat;

int levels(int n) { return std::bit_width(static_cast<unsigned>(n - 1)); }

Link link_of(double latency, double per_byte) { return {latency, per_byte > 0 ? 1 / per_byte : 0}; }

}  // namespace

const char* to_string(AllReduce algorithm) {
  switch (algorithm) {
    case AllReduce::ring: return "ring";
    case AllReduce::tree: return "tree";
    default: return "hierarchical";
  }
}

Link all_reduce_link(AllReduce algorithm, int n, const Cluster& cluster) {
  WEFT_CHECK(n >= 1, InvalidArgument, "simulate", "devices: got ", n, ", expected 1 or more");
  if (n == 1) return {};
  const int local = std::min(n, cluster.per_node);
  const int nodes = (n + cluster.per_node - 1) / cluster.per_node;
  // Seconds per byte.
  const double inside = cluster.inside.transfer(1);
  const double between = cluster.between.transfer(1) / cluster.ports;  // of a whole node
  const double slowest = nodes > 1 ? std::max(inside, between) : inside;
  const auto part = [](int count) { return 2.0 * (count - 1) / count; };
  switch (algorithm) {
    case AllReduce::ring: {
      // As NCCL counts: of the 2 (n - 1) steps, 2 (nodes - 1) wait for the network.
      const double latency = cluster.base + 2.0 * (n - nodes) * cluster.inside.latency +
                             2.0 * (nodes - 1) * cluster.between.latency;
      return link_of(latency, part(n) * slowest);
    }
    case AllReduce::tree: {
      const double latency = cluster.base + 2.0 * levels(local) * cluster.inside.latency +
                             2.0 * levels(nodes) * cluster.between.latency;
      return link_of(latency, 2 * slowest);
    }
    default: break;
  }
  double latency = cluster.base + 2.0 * (local - 1) * cluster.inside.latency;
  double per_byte = part(local) * inside;
  if (nodes > 1) {
    // Each device of a node has 1 / local of the bytes, and all devices send at once.
    latency += 2.0 * (nodes < 4 ? nodes - 1 : levels(nodes)) * cluster.between.latency;
    per_byte += (nodes < 4 ? part(nodes) : 2.0) * between;
  }
  return link_of(latency, per_byte);
}

ModelledStep model_step(const Work& work, std::int64_t rows, int devices, AllReduce algorithm,
                        const Cluster& cluster) {
  WEFT_CHECK(rows >= 1, InvalidArgument, "simulate", "rows: got ", rows, ", expected 1 or more");
  const auto count = static_cast<double>(rows);
  ModelledStep step{.devices = devices, .rows = rows};
  std::vector<LayerCost> layers;
  std::vector<double> backward;
  double parameter_bytes = 0;
  for (const LayerWork& layer : work.layers) {
    const double bytes = count * (layer.input_bytes + layer.output_bytes) + layer.parameter_bytes;
    const double forward = std::max(
        {2 * count * layer.macs / cluster.flops, bytes / cluster.bytes_per_second, cluster.launch});
    step.compute += forward;
    backward.push_back(2 * forward);
    step.compute += backward.back();
    layers.push_back({});
    if (layer.parameter_bytes > 0) layers.back().parameter_bytes = {layer.parameter_bytes};
    parameter_bytes += layer.parameter_bytes;
  }
  step.optimizer =
      cluster.launch + work.optimizer_passes * parameter_bytes / cluster.bytes_per_second;
  if (devices == 1) return step;
  const Link link = all_reduce_link(algorithm, devices, cluster);
  const Exposed exposed = exposed_all_reduce(layers, backward, link, false);
  step.exposed = exposed.seconds;
  for (const double bytes : exposed.bucket_bytes) step.all_reduce += link.seconds(bytes);
  return step;
}

Scaling scale(const Work& work, const Cluster& cluster, bool weak, std::int64_t rows, int most) {
  WEFT_CHECK(rows >= 1 && most >= 1, InvalidArgument, "simulate", "rows ", rows, ", devices ", most,
             ": expected 1 or more");
  Scaling scaling{cluster.name, work.program, weak, rows, {}};
  double one = 0;  // images per second
  for (int n = 1; n <= std::min(most, cluster.most_devices); n *= 2) {
    if (!weak && rows < n) break;
    const std::int64_t local = weak ? rows : (rows + n - 1) / n;
    for (const AllReduce algorithm : kAllReduces) {
      const ModelledStep step = model_step(work, local, n, algorithm, cluster);
      const double images = static_cast<double>(weak ? rows * n : rows) / step.seconds();
      if (n == 1) one = images;
      scaling.points.push_back({algorithm, step, images, images / (n * one)});
    }
  }
  return scaling;
}

std::string to_text(const Scaling& scaling) {
  char line[200];
  std::string text = concat("MODEL, nothing measured: ", scaling.program, " on ", scaling.cluster,
                            ", ", scaling.weak ? "weak" : "strong", " scaling, ", scaling.rows,
                            " rows ", scaling.weak ? "on each device" : "in all", '\n');
  std::snprintf(line, sizeof line, "%-6s %7s %6s %-13s %11s %11s %11s %11s %12s %10s\n", "",
                "devices", "rows", "all-reduce", "compute ms", "reduce ms", "exposed ms", "step ms",
                "images/s", "efficiency");
  text += line;
  for (const Scaling::Point& point : scaling.points) {
    const ModelledStep& step = point.step;
    if (step.devices == 1 && point.algorithm != AllReduce::ring) continue;  // all are the same
    std::snprintf(line, sizeof line,
                  "%-6s %7d %6lld %-13s %11.3f %11.3f %11.3f %11.3f %12.0f %9.1f%%\n", "model",
                  step.devices, static_cast<long long>(step.rows),
                  step.devices == 1 ? "none" : to_string(point.algorithm), step.compute * 1e3,
                  step.all_reduce * 1e3, step.exposed * 1e3, step.seconds() * 1e3,
                  point.images_per_second, 100 * point.efficiency);
    text += line;
  }
  return text;
}

json to_json(const Scaling& scaling) {
  json rows = json::array();
  for (const Scaling::Point& point : scaling.points) {
    rows.push_back({{"kind", "model"},
                    {"scaling", scaling.weak ? "weak" : "strong"},
                    {"devices", point.step.devices},
                    {"rows", point.step.rows},
                    {"all_reduce", to_string(point.algorithm)},
                    {"compute_ms", point.step.compute * 1e3},
                    {"optimizer_ms", point.step.optimizer * 1e3},
                    {"all_reduce_ms", point.step.all_reduce * 1e3},
                    {"exposed_ms", point.step.exposed * 1e3},
                    {"step_ms", point.step.seconds() * 1e3},
                    {"images_per_second", point.images_per_second},
                    {"efficiency", point.efficiency}});
  }
  return rows;
}

std::string picture(const Scaling& weak, const Scaling& strong) {
  std::vector<train::LogLogChart> both;
  for (const Scaling* scaling : {&weak, &strong}) {
    std::vector<train::PointCurve> curves = {{"ideal", {}}};
    for (const AllReduce algorithm : kAllReduces) {
      train::PointCurve& curve = curves.emplace_back(train::PointCurve{to_string(algorithm), {}});
      for (const Scaling::Point& point : scaling->points) {
        if (point.algorithm != algorithm) continue;
        curve.points.emplace_back(point.step.devices, point.images_per_second / point.step.devices);
      }
    }
    for (const auto& [devices, images] : curves[1].points) {
      curves[0].points.emplace_back(devices, curves[1].points[0].second);
    }
    const std::string title = concat("MODEL, not measured: ", scaling->program, ", ",
                                     scaling->weak ? "weak" : "strong", " scaling");
    const std::string below = concat("devices (", scaling->cluster, "), ", scaling->rows,
                                     scaling->weak ? " rows on each" : " rows in all");
    both.push_back({title, below, "images/s of each device", std::move(curves)});
  }
  return train::log_log_picture(both);
}

}  // namespace weft::simulator
