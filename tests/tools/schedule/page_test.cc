// The page in which a schedule is edited, in Chromium: its checker, which is one of its own, beside
// parallel/schedule.h, and what mouse, finger and keys do. See `./weft test --pages`.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/parallel/schedule.h"
#include "weft/parallel/simulate.h"
#include "weft/tests/tools/command.h"

namespace weft {
namespace {

using nlohmann::json;
using parallel::Action;
using parallel::Recompute;
using parallel::Schedule;

class SchedulePage : public testing::CommandTest {
 protected:
  SchedulePage() : CommandTest("schedule") {}

  /// The value of `script`, which ends in an expression, in the page that tools/schedule writes.
  json in_page(const std::string& options, const std::string& script) {
    const std::string page = folder.path("page.html"), dom = folder.path("dom");
    EXPECT_EQ(run(options + " -o " + page), 0) << log();
    std::string text = testing::read_file(page);
    const std::size_t end = text.rfind("</body>");
    EXPECT_NE(end, std::string::npos) << text;
    // Encodes the answer, so that HTML changes no character of it.
    text.insert(end, "<script>{ let result; try { result = " + script +
                         "; } catch (error) { result = error.stack; }\n"
                         "document.body.textContent = 'RESULT' + encodeURIComponent("
                         "JSON.stringify(result)) + 'END'; }</script>\n");
    testing::write_file(page, text);
    // Containers have no sandbox, and often no shared memory. The folder is for the profile.
    const std::string command =
        "HOME=" + folder.root() +
        " chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir=" +
        folder.path("profile") + " --window-size=1400,900 --dump-dom file://" + page + " >" + dom +
        " 2>" + folder.path("said");
    EXPECT_EQ(std::system(command.c_str()), 0) << testing::read_file(folder.path("said"));
    const std::string found = testing::read_file(dom);
    const std::size_t begin = found.find("RESULT") + 6, length = found.find("END") - begin;
    if (found.find("RESULT") == std::string::npos) {
      ADD_FAILURE() << "no result in " << found << testing::read_file(folder.path("said"));
      return {};
    }
    std::string decoded;
    for (std::size_t i = begin; i < begin + length; ++i) {
      const bool coded = found[i] == '%';
      decoded +=
          coded ? static_cast<char>(std::stoi(found.substr(i + 1, 2), nullptr, 16)) : found[i];
      i += coded ? 2 : 0;
    }
    return json::parse(decoded);
  }
};

/// The text of a random schedule: one of weft's, with edits.
class Editor {
 public:
  explicit Editor(unsigned seed) : random_(seed) {}

  int below(std::size_t n) { return static_cast<int>(random_() % n); }

  std::string next() {
    static const std::vector<std::tuple<const char*, int, int, int>> kMade = {
        {"gpipe", 3, 4, 0}, {"1f1b", 4, 6, 0},        {"interleaved", 4, 5, 2},
        {"zb-h1", 4, 5, 0}, {"interleaved", 6, 4, 2}, {"zb-v", 6, 6, 0},
        {"zb-v", 4, 3, 0},  {"dualpipev", 4, 5, 0},   {"1f1b", 1, 2, 0}};
    const auto& [name, stages, micro_batches, devices] = kMade[below(kMade.size())];
    schedule_ = parallel::make_schedule(name, stages, micro_batches,
                                        static_cast<Recompute>(below(3)), devices);
    if (below(2) == 0) schedule_ = parallel::with_communication(schedule_);
    for (int edits = 1 + below(2); edits > 0; --edits) edit();
    std::string text = parallel::to_string(schedule_);
    constexpr std::string_view kCharacters = "0123456789FBIWR<>.:# x\n";
    if (below(12) == 0) text[below(text.size())] = kCharacters[below(kCharacters.size())];
    return text;
  }

 private:
  using List = std::vector<Action>;

  List& any_list() { return schedule_.devices[below(schedule_.devices.size())]; }

  void edit() {
    List &list = any_list(), &other = any_list();
    if (list.empty()) return;
    const auto any_place = [&](const List& in) { return below(in.size() + 1); };
    const auto insert = [&](List& into, const Action& action) {
      into.insert(into.begin() + any_place(into), action);
    };
    const int i = below(list.size()), kind = below(32);
    const Action action = list[i];
    if (kind < 17) {  // swaps neighbours, which often does no harm
      std::swap(list[i], list[std::min<std::size_t>(i + 1, list.size() - 1)]);
    } else if (kind < 18) {
      std::swap(list[i], list[below(list.size())]);
    } else if (kind < 19) {
      list.erase(list.begin() + i);
    } else if (kind < 22) {
      list.erase(list.begin() + i);
      insert(kind < 21 ? list : other, action);
    } else if (kind < 24) {  // takes out a whole stage, which is lost or moved
      List moved;
      std::ranges::copy_if(list, std::back_inserter(moved),
                           [&](const Action& each) { return each.stage == action.stage; });
      std::erase_if(list, [&](const Action& each) { return each.stage == action.stage; });
      if (below(3) > 0) other.insert(other.begin() + any_place(other), moved.begin(), moved.end());
    } else if (kind < 25) {
      insert(list, action);
    } else if (kind < 26) {
      list[i].micro_batch = below(schedule_.micro_batches);
    } else if (kind < 28) {
      list[i].kind = static_cast<Action::Kind>(below(9));
    } else {  // one message too many
      insert(list, {static_cast<Action::Kind>(5 + below(4)), action.stage, action.micro_batch});
    }
  }

  std::mt19937 random_;
  Schedule schedule_;
};

/// The first of these that is in the text of an error.
const std::vector<std::pair<const char*, const char*>> kVerdicts = {
    {"line ", "text"},
    {" has nothing to do", "idle"},
    {" stands twice", "twice"},
    {" is on no device", "nowhere"},
    {" already; put all", "split"},
    {" exclude each other", "both"},
    {" is missing", "missing"},
    {" has no stage on its other side", "alone"},
    {" are both on device", "local"},
    {" comes before ", "order"},
    {"deadlock: ", "deadlock"},
};

/// What an error is about: "line 3", "stage 2", "B0.0 is", "F0.1 (device 0, action 2)".
std::string subject(const std::string& text) {
  std::smatch found;
  std::regex_search(text, found, std::regex(R"((\S+ \(device \d+, action \d+\)|\S+ \w+))"));
  return found.str();
}

json verdict(const std::string& text, const parallel::StageCosts& costs) {
  try {
    const Schedule schedule = parallel::parse_schedule(text);
    const parallel::ScheduleCheck checked = parallel::check(schedule);
    parallel::StageCosts of_all = costs;
    for (auto* each : {&of_all.forward, &of_all.backward_input, &of_all.backward_weight}) {
      each->resize(schedule.stages, each->front());
    }
    const parallel::Timeline timeline = parallel::simulate(schedule, of_all);
    std::vector<std::vector<double>> begins(schedule.devices.size());
    for (const auto& timed : timeline.actions) begins[timed.device].push_back(timed.begin);
    return {{"verdict", "right"},
            {"bubble", timeline.bubble()},
            {"end", timeline.end},
            {"begins", begins},
            {"activations", checked.peak_activations},
            {"inputs", checked.peak_inputs},
            {"kept", checked.peak_device_activations},
            {"path", true}};
  } catch (const Error& error) {
    const std::string said = error.what();
    for (const auto& [words, verdict] : kVerdicts) {
      if (said.find(words) == std::string::npos) continue;
      const std::size_t begin = said.find("deadlock: ");
      return {{"verdict", verdict},
              {"subject", subject(said.substr(begin == std::string::npos ? 11 : begin + 10))}};
    }
    ADD_FAILURE() << said;
    return {};
  }
}

TEST_F(SchedulePage, ItsCheckerIsThatOfTheLibrary) {
  Editor editor(35);
  json cases = json::array(), expected = json::array();
  std::map<std::string, int> count;
  for (int i = 0; i < 1000; ++i) {
    const std::string text = editor.next();
    const std::vector<std::array<double, 4>> kCosts = {
        {1, 1, 1, 0}, {2, 1, 3, 0.5}, {1, 2, 0, .25}};
    const auto [forward, input, weight, transfer] = kCosts[editor.below(kCosts.size())];
    cases.push_back({text, {{"F", forward}, {"I", input}, {"W", weight}, {"transfer", transfer}}});
    expected.push_back(verdict(text, {{forward}, {input}, {weight}, transfer}));
    ++count[expected.back()["verdict"]];
  }
  // There are cases of each kind to compare.
  std::string counts;
  for (const auto& [name, cases_of_it] : count) {
    counts += name + ' ' + std::to_string(cases_of_it) + ' ';
    EXPECT_GE(cases_of_it, name == "right" ? 200 : 3) << name;
  }
  EXPECT_EQ(count.size(), kVerdicts.size() + 1) << counts;
  std::printf("%s\n", counts.c_str());

  const json got = in_page("1f1b --stages 2 --micro-batches 2", cases.dump() + R"(.map(
    ([text, costs]) => {
      try {
        const schedule = parse(text);
        check(schedule);
        const simulated = simulate(schedule, costs), {times, end, bubble} = simulated;
        const {peaks, peakActivations, peakInputs} = memory(schedule);
        // Each begins when the one before has ended or its message arrives, and the last one ends
        // last.
        const path = criticalPath(simulated), gaps = [0, costs.transfer];
        const whole = path[0].begin === 0 && path.at(-1).end === end && path.every(
            ({begin}, i) => i === 0 || gaps.includes(begin - path[i - 1].end));
        return {verdict: 'right', bubble, end, kept: peaks, activations: peakActivations,
                inputs: peakInputs, begins: times.map(row => row.map(({begin}) => begin)),
                path: whole};
      } catch (error) {
        if (!(error instanceof Wrong)) throw error;
        return {verdict: error.verdict, text: error.message};
      }
    }))");
  ASSERT_EQ(got.size(), cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    json answer = got[i];
    if (answer.contains("text")) {
      const std::string said = answer["text"];
      answer = {{"verdict", answer["verdict"]},
                {"subject", subject(said.starts_with("deadlock: ") ? said.substr(10) : said)}};
    }
    EXPECT_EQ(answer, expected[i]) << i << ":\n"
                                   << cases[i][0].get<std::string>() << cases[i][1] << '\n'
                                   << got[i];
  }
}

// Moves actions as a user does; the result has the text and the verdict after each step, and what
// does not fit.
constexpr const char* kHands = R"((width => {
  document.documentElement.style.width = `${width}px`;
  const all = () => [...document.querySelectorAll('.action')];
  const shape = name => all().find(each => each.ariaLabel.startsWith(name + ':'));
  const press = (key, more = {}) => (document.querySelector('.action.selected') ?? all()[0])
      .dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, ...more}));
  const point = (type, target, [x, y], pointerType = 'mouse') => target.dispatchEvent(new PointerEvent(
      type, {clientX: x, clientY: y, pointerType, button: 0, bubbles: true, cancelable: true}));
  const middle = name => {
    const {left, top, width, height} = shape(name).getBoundingClientRect();
    return [left + width / 2, top + height / 2];
  };
  // To just before the middle of another action, or just behind it.
  const drag = (name, to, pointerType = 'mouse', beside = -2) => {
    const [x, y] = middle(to), end = [x + beside, y];
    point('pointerdown', shape(name), middle(name), pointerType);
    // A finger that the page does not hold scrolls: the browser takes the pointer away.
    const touch = new Event('touchstart', {bubbles: true, cancelable: true});
    if (pointerType === 'touch' && shape(name).dispatchEvent(touch))
      return point('pointercancel', window, end, pointerType);
    point('pointermove', window, end, pointerType);
    point('pointerup', window, end, pointerType);
  };
  const write = (id, value) => {
    element(id).value = value;
    element(id).dispatchEvent(new Event('input'));
  };
  const misfits = () => {
    const wrong = [];
    if (document.body.scrollWidth > document.body.clientWidth) wrong.push('the page is too wide');
    for (const each of all()) {
      const [, rect, text] = each.children;
      if (text.getComputedTextLength() > rect.getBBox().width) wrong.push(each.ariaLabel);
    }
    for (const text of document.querySelectorAll('#rows text'))
      if (text.getBBox().x + text.getBBox().width > LABELS) wrong.push(text.textContent);
    for (const row of layout)
      for (const messages of [true, false]) {
        const bars = row.filter((_, i) => isMessage(schedule.devices[layout.indexOf(row)][i]) === messages);
        bars.forEach(({x}, i) => i && x < bars[i - 1].x + bars[i - 1].width - .01 && wrong.push(`${x}`));
      }
    const right = Math.max(...layout.flat().map(({x, width}) => x + width));
    if (right > element('picture').width.baseVal.value) wrong.push('the picture is cut off');
    return wrong;
  };
  const results = [];
  for (const step of [
    () => {},
    () => drag('F1.1', 'B1.0'),
    () => press('z', {ctrlKey: true}),
    () => drag('F1.0', 'B1.0', 'mouse', 2),
    () => press('z', {metaKey: true}),
    () => drag('B1.0', 'F1.0', 'touch'),  // selects it only
    () => drag('B1.0', 'F1.0', 'touch'),
    () => press('ArrowRight'),
    () => press('ArrowUp'),
    () => press('ArrowDown'),
    () => press('ArrowRight', {shiftKey: true}),
    () => press('s'),
    () => press('Delete'),
    () => element('undo').click(),
    () => element('split').click(),
    () => {
      point('pointerdown', shape('F1.1'), middle('F1.1'));
      point('pointermove', window, middle('F0.0'));
      press('Escape');
      point('pointermove', window, middle('F0.1'));
    },
    () => element('whole').click(),
    () => press('ArrowUp'),
    () => {
      const [x] = middle('F0.0'), [, y] = middle('B0.0');
      point('pointerdown', shape('F0.0'), middle('F0.0'));
      point('pointermove', window, [x, y + BAR + GAP]);
      point('pointerup', window, [x, y + BAR + GAP]);
    },
    () => write('text', 'weft schedule mine stages 3 micro-batches 1\n' +
                        '0: F2.0 F0.0 B2.0 B0.0\n1: F1.0 B1.0\n'),
    () => drag('F0.0', 'F2.0'),
    () => write('limit', 1),
    () => write('W', .5),
    () => write('F', .1),
    () => write('F', 1),
    () => write('text', 'weft schedule sends stages 2 micro-batches 1\n' +
                        '0: F0.0 >F0.0 R0.0 <B0.0 B0.0\n1: <F1.0 F1.0 B1.0 >B1.0 # both\n'),
    () => write('transfer', .5),
    () => drag('>B1.0', '<F1.0'),
    () => write('text', 'weft schedule twice stages 1 micro-batches 1\n0: F0.0 B0.0 F0.0'),
    () => write('text', 'weft schedule none stages 1 micro-batches 1'),
    () => write('text', 'weft schedule wrong stages 1 micro-batches 1\n0: F0.0 <C0.0'),
  ]) {
    step();
    results.push({text: element('text').value, verdict: element('verdict').textContent,
                  selected: chosen() ?? '', misfits: misfits()});
  }
  return results;
}))";

TEST_F(SchedulePage, MouseFingerAndKeysMoveActions) {
  struct Step {
    std::string text, verdict, selected;
  };
  const std::string made = "weft schedule 1f1b stages 2 micro-batches 2\n",
                    edited = "weft schedule 1f1b-edited stages 2 micro-batches 2\n",
                    first = "0: F0.0 F0.1 B0.0 B0.1\n", second = "1: F1.0 B1.0 F1.1 B1.1\n",
                    early = "1: F1.0 F1.1 B1.0 B1.1\n", parts = "1: F1.0 F1.1 B1.0 I1.1 W1.1\n",
                    third = "1: F1.0 B1.0\n",
                    mine =
                        "weft schedule mine-edited stages 3 micro-batches 1\n"
                        "0: F0.0 F2.0 B2.0 B0.0\n" +
                        third,
                    sends =
                        "weft schedule sends stages 2 micro-batches 1\n"
                        "0: F0.0 >F0.0 R0.0 <B0.0 B0.0\n",
                    right = "complete and free of deadlock: ends after ";
  const std::vector<Step> expected = {
      {made + first + second, right + "9 s, bubble 33.3 %", ""},
      {edited + first + early, right + "9 s, bubble 33.3 %", "F1.1"},
      {made + first + second, right + "9 s, bubble 33.3 %", "F1.1"},
      {edited + first + "1: B1.0 F1.0 F1.1 B1.1\n",
       "B1.0 (device 1, action 1) comes before F1.0 (device 1, action 2), which it needs", "F1.0"},
      {made + first + second, right + "9 s, bubble 33.3 %", "F1.0"},
      {made + first + second, right + "9 s, bubble 33.3 %", "B1.0"},
      {edited + first + "1: B1.0 F1.0 F1.1 B1.1\n",
       "B1.0 (device 1, action 1) comes before F1.0 (device 1, action 2), which it needs", "B1.0"},
      {edited + first + second, right + "9 s, bubble 33.3 %", "B1.0"},
      {edited + "0: F0.0 F0.1 B1.0 B0.0 B0.1\n1: F1.0 F1.1 B1.1\n",
       "F1.0 (device 1, action 1): stage 1 is on device 0 already", "B1.0"},
      {edited + first + early, right + "9 s, bubble 33.3 %", "B1.0"},
      {edited + first + early, right + "9 s, bubble 33.3 %", "B1.1"},
      {edited + first + parts, right + "9 s, bubble 33.3 %", "I1.1"},
      {edited + first + "1: F1.0 F1.1 B1.0 W1.1\n", "I1.1 is missing on device 1", "W1.1"},
      {edited + first + parts, right + "9 s, bubble 33.3 %", "I1.1"},
      {edited + first + early, right + "9 s, bubble 33.3 %", "B1.1"},
      {edited + first + early, right + "9 s, bubble 33.3 %", "F1.1"},
      {edited + first + early, right + "9 s, bubble 33.3 %", "F1.1"},
      {edited + "0: F0.0 F1.0 F0.1 F1.1 B1.0 B1.1 B0.0 B0.1\n1:\n",
       "device 1 has nothing to do; take out its line", "F1.1"},
      {edited + "0: F1.0 F1.1 B1.0 B1.1\n1: F0.0 F0.1 B0.0 B0.1\n", right + "9 s, bubble 33.3 %",
       "F0.0"},
      {"weft schedule mine stages 3 micro-batches 1\n0: F2.0 F0.0 B2.0 B0.0\n" + third,
       "deadlock: F2.0 (device 0, action 1) waits for F1.0 (device 1, action 1); F1.0 (device 1, "
       "action 1) waits for F0.0 (device 0, action 2)",
       ""},
      {mine, right + "9 s, bubble 50.0 %", "F0.0"},
      {mine, right + "9 s, bubble 50.0 %; too much memory: device 0 keeps 2", "F0.0"},
      {mine, right + "7.5 s, bubble 50.0 %; too much memory: device 0 keeps 2", "F0.0"},
      {mine, right + "4.8 s, bubble 50.0 %; too much memory: device 0 keeps 2", "F0.0"},
      {mine, right + "7.5 s, bubble 50.0 %; too much memory: device 0 keeps 2", "F0.0"},
      {sends + "1: <F1.0 F1.0 B1.0 >B1.0 # both\n", right + "5 s, bubble 40.0 %", ""},
      {sends + "1: <F1.0 F1.0 B1.0 >B1.0 # both\n", right + "6 s, bubble 50.0 %", ""},
      {"weft schedule sends-edited" + sends.substr(19) + "1: >B1.0 <F1.0 F1.0 B1.0\n",
       ">B1.0 (device 1, action 1) comes before B1.0 (device 1, action 4), which it needs",
       ">B1.0"},
      {"weft schedule twice stages 1 micro-batches 1\n0: F0.0 B0.0 F0.0",
       "F0.0 (device 0, action 3) stands twice, first F0.0 (device 0, action 1)", ""},
      {"weft schedule none stages 1 micro-batches 1", "stage 0 of 1 is on no device", ""},
      {"weft schedule wrong stages 1 micro-batches 1\n0: F0.0 <C0.0",
       "line 2: got '<C0.0', expected an action, as F0.3", ""},
  };
  for (const char* const width : {"1200", "400"}) {
    const json got =
        in_page("1f1b --stages 2 --micro-batches 2", std::string(kHands) + '(' + width + ')');
    ASSERT_EQ(got.size(), expected.size()) << got;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto& [text, said, selected] = expected[i];
      EXPECT_EQ(got[i], (json{{"text", text},
                              {"verdict", said},
                              {"selected", selected},
                              {"misfits", json::array()}}))
          << i << ", " << width;
      // --check and Pipeline accept what is exported.
      EXPECT_EQ(verdict(text, {{1}, {1}, {1}})["verdict"] == "right", said.starts_with(right)) << i;
    }
  }
}

}  // namespace
}  // namespace weft
