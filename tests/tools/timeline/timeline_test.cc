// tools/timeline as its user meets it: what it writes, its output and exit status. Python's parser
// reads the pictures.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "weft/parallel/simulate.h"
#include "weft/tests/tools/timeline/traces.h"

namespace weft::timeline {
namespace {

// Fails for what is not well-formed; a line for each rectangle.
constexpr const char* kReader = R"(
import sys, xml.etree.ElementTree as tree
for r in tree.parse(sys.argv[1]).iter('{http://www.w3.org/2000/svg}rect'):
  title = r.find('{http://www.w3.org/2000/svg}title')
  if r.get('class') in ('bar', 'row'):
    print(r.get('class'), r.get('x'), r.get('width'), r.get('y'),
          title.text.split(':')[0] if title is not None else '-')
)";

struct Rectangle {
  double x, width, y;
};

class TimelineCommand : public ::testing::Test {
 protected:
  int run(const std::string& arguments, const std::string& out = "&2") const {
    const std::string command =
        "tools/timeline/timeline " + arguments + " 2>" + folder.path("log") + " >" + out;
    return WEXITSTATUS(std::system(command.c_str()));
  }
  std::string log() const { return testing::read_file(folder.path("log")); }
  std::string write(const std::string& text) const {
    testing::write_file(folder.path("trace.json"), text);
    return folder.path("trace.json");
  }
  // By what they are of, in the order of the file.
  std::map<std::string, std::vector<Rectangle>> rectangles(const std::string& file) const {
    testing::write_file(folder.path("read.py"), kReader);
    const std::string command =
        "python3 " + folder.path("read.py") + " " + file + " >" + folder.path("read") + " 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << testing::read_file(folder.path("read"));
    std::istringstream lines(testing::read_file(folder.path("read")));
    std::map<std::string, std::vector<Rectangle>> found;
    std::string kind, name;
    for (Rectangle r; lines >> kind >> r.x >> r.width >> r.y && std::getline(lines, name);) {
      found[kind == "bar" ? name.substr(1) : kind].push_back(r);
    }
    return found;
  }

  testing::TempFolder folder;
};

parallel::Timeline a_step() {
  return simulate(parallel::gpipe(2, 3), {{.010, .020}, {.020, .040}, {0, 0}});
}

TEST_F(TimelineCommand, RectanglesLieWhereTheSpansSay) {
  TraceFile trace;
  const parallel::Timeline measured = a_step();
  trace.add_pipeline(4, measured, 1000);
  trace.add_pipeline(5, simulate(parallel::gpipe(2, 3), parallel::equal_costs(2, .01, .01, 0)),
                     2000);
  for (const std::string& out : {folder.path("out.svg"), folder.path("out.html")}) {
    ASSERT_EQ(run(trace.write(folder) + " --step 4 -o " + out), 0) << log();
    auto found = rectangles(out);
    ASSERT_EQ(found["row"].size(), 4U);  // two devices, predicted and measured
    EXPECT_EQ(found["row"][0].width, found["row"][2].width);
    for (const parallel::TimedAction& timed : measured.actions) {
      const Rectangle& row = found["row"][2 + static_cast<std::size_t>(timed.device)];
      ASSERT_EQ(found[to_string(timed.action)].size(), 2U) << to_string(timed.action);
      const Rectangle& bar = found[to_string(timed.action)][1];
      EXPECT_NEAR(bar.x, row.x + timed.begin / measured.end * row.width, 0.02);
      EXPECT_NEAR(bar.width, (timed.end - timed.begin) / measured.end * row.width, 0.02);
      EXPECT_EQ(bar.y, row.y);
    }
  }
  EXPECT_EQ(log().find("Step 4 of a pipeline: 2 stages on 2 devices, 3 micro-batches\n"), 0U)
      << log();
}

TEST_F(TimelineCommand, TheOtherEnginesHavePicturesToo) {
  TraceFile data_parallel, ddp;
  data_parallel.add_data_parallel(0, 0);
  ddp.add_ddp(0, 0);
  const std::string out = folder.path("out.svg");
  ASSERT_EQ(run(data_parallel.write(folder) + " -o " + out), 0) << log();
  EXPECT_EQ(rectangles(out)["row"].size(), 3U);
  ASSERT_EQ(run(ddp.write(folder) + " -o " + out), 0) << log();
  EXPECT_EQ(rectangles(out)["row"].size(), 4U);
}

TEST_F(TimelineCommand, NamesMayHoldAnything) {
  TraceFile trace;
  trace.add_pipeline(0, a_step(), 0, "<&\">\x01\xc3\xa4 and a very long name for a device ");
  for (const std::string& out : {folder.path("out.svg"), folder.path("out.html")}) {
    ASSERT_EQ(run(trace.write(folder) + " -o " + out), 0) << log();
    EXPECT_EQ(rectangles(out)["row"].size(), 4U);
    EXPECT_NE(testing::read_file(out).find("&lt;&amp;&quot;&gt; \xc3\xa4 and"), std::string::npos);
  }
}

TEST_F(TimelineCommand, APageNeedsNothingElse) {
  TraceFile trace;
  trace.add_pipeline(0, a_step(), 0);
  const std::string out = folder.path("out.html");
  ASSERT_EQ(run(trace.write(folder) + " -o " + out), 0) << log();
  std::string page = testing::read_file(out);
  const std::string name_space = "http://www.w3.org/2000/svg";
  page.erase(page.find(name_space), name_space.size());
  for (const char* outside : {"http", "src=", "href", "url(", "@import"}) {
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  }
}

TEST_F(TimelineCommand, AFileThatIsNoTraceIsTwoAndSaysWhy) {
  const auto says = [&](const std::string& file, const std::string& text) {
    EXPECT_EQ(run(file + " -o " + folder.path("out.svg")), 2) << file;
    EXPECT_NE(log().find(text), std::string::npos) << log();
  };
  TraceFile trace;
  trace.add_pipeline(0, a_step(), 0);
  const std::string whole = trace.text();
  says(folder.path("nothing"), "cannot be read");
  says(folder.root(), "cannot be read");
  says(write(""), "is empty");
  says(write(whole.substr(0, whole.size() / 2)), "was its program ended while it wrote?");
  says(write("[1, 2]"), "is no trace that --trace wrote");
  says(write("{}"), "is no trace that --trace wrote");
  says(write(R"({"traceEvents":[{"ph":"X","ts":1}]})"),
       "is no trace that --trace wrote: a 'dur' is missing in it");
  says(write(R"({"traceEvents":[{"ph":"X","ts":"1"}]})"),
       "is no trace that --trace wrote: something in it is not of the type that belongs there");
  EXPECT_EQ(log().find("exception"), std::string::npos) << log();
  says(write(R"({"traceEvents":[]})"), "no spans of a Pipeline");
  TraceFile other;
  other.add("op", "relu", 0, 1, 0, {{"step", 0}});
  says(write(other.text()), "no spans of a Pipeline");
  other.add("parallel", "scatter", 0, 1, 0, {{"step", 0}});
  says(write(other.text()), "no whole step");
  other = {};
  other.add("ddp", "send bucket", 0, 1, 0, {{"step", 0}});
  says(write(other.text()), "bucket");
  other = {};
  other.add("ddp", "send bucket", 0, 1, 0, {{"step", 0}, {"bucket", -1}, {"bytes", 4}});
  says(write(other.text()), "expected less than 65536");
}

TEST_F(TimelineCommand, WrongUsageIsTwoAndSaysWhatIsRight) {
  TraceFile trace;
  trace.add_pipeline(0, a_step(), 0);
  const std::string file = trace.write(folder);
  const auto says = [&](const std::string& arguments, const std::string& text) {
    EXPECT_EQ(run(arguments), 2) << arguments;
    EXPECT_NE(log().find(text), std::string::npos) << log();
  };
  says("", "expected a TRACE");
  says(file + " --stp 2", "unknown option --stp; did you mean --step?");
  says(file + " --step two", "--step");
  says(file + " --step -1", "--step");
  says(file + " --step 3", "no whole step 3; its first is 0, its last 0");
  says(file + " other.json", "unexpected argument 'other.json'");
  says(file + " -o out.png", "ends in .html or .svg");
  says(file + " -o " + folder.path("no/folder.svg"), "no/folder.svg");
  EXPECT_EQ(run("--help"), 0);
  EXPECT_NE(log().find("--step"), std::string::npos) << log();
}

TEST_F(TimelineCommand, OutputThatIsLostIsTwo) {
  TraceFile trace;
  trace.add_pipeline(0, a_step(), 0);
  for (const std::string& arguments :
       {trace.write(folder) + " -o " + folder.path("out.svg"), std::string("--help")}) {
    EXPECT_EQ(run(arguments, "/dev/full"), 2) << arguments;
    EXPECT_NE(log().find("timeline: error: [stdout] some of the output is lost: No space left"),
              std::string::npos)
        << log();
  }
}

}  // namespace
}  // namespace weft::timeline
