// One step of DistributedDataParallel as its trace shows it: what each rank computed and sent when.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/io/png.h"

namespace weft::picture {

/// In milliseconds from the step's beginning.
struct Interval {
  double begin = 0, end = 0;
};

struct BucketTimes {
  std::int64_t bytes = 0;
  double sent = 0;     ///< when its last gradient was ready
  Interval reduction;  ///< the all-reduce
};

struct RankTimes {
  Interval forward, backward;
  std::vector<Interval> rules;  ///< of backward: an operation each
  Interval waiting;             ///< for the last buckets, within backward
  Interval optimizer;
  std::vector<BucketTimes> buckets;
};

struct StepTimes {
  std::int64_t step = 0;
  std::vector<RankTimes> ranks;

  double end() const;
};

/// From a trace that --trace wrote under several ranks. step -1: of the steps whose buckets are
/// those of the last one, that of median length. Throws Io for what is no trace, InvalidArgument
/// when the step is not in it or is none of DDP.
StepTimes read_step(const std::string& path, std::int64_t step = -1);

io::Image bucket_picture(const StepTimes& times);

}  // namespace weft::picture
