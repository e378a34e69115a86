// The program of an exercise: the learner's solution, the right one and typical wrong ones, each of
// which is judged in a child process.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "weft/learn/judge/verdict.h"

namespace weft::learn {

/// A wrong solution, a part of the sentence that the judge must say of it, and what the mistake is,
/// where the name does not say it.
template <class Solution>
struct WrongOne {
  std::string name;
  Solution solution;
  std::string sentence;
  std::string mistake = {};
};

/// A solution with its judge, which throws Wrong or NotYet, and returns what it has found right.
struct Candidate {
  std::string name;
  std::function<std::string()> judge;
  std::string sentence = {}, mistake = {};  ///< of a wrong one
};

/// The main function of an exercise. `folder` is its name under learn/; the first candidate is the
/// learner's, the second the right one. Options:
///   (none)        judges the learner's; status 0: solved, 1: not yet
///   --break       judges the wrong ones; status 1 if one is not caught
///   --list        names the candidates and what is to be said of them, for the tests
///   --judge NAME  judges one
int run_lab(int argc, char** argv, const std::string& folder,
            const std::vector<Candidate>& candidates);

template <class Solution>
int run_lab(int argc, char** argv, const std::string& folder, std::string (*judge)(Solution),
            std::type_identity_t<Solution> yours, std::type_identity_t<Solution> right,
            const std::vector<WrongOne<Solution>>& wrong_ones) {
  std::vector<Candidate> all{{"yours", [=] { return judge(yours); }},
                             {"right", [=] { return judge(right); }}};
  for (const WrongOne<Solution>& wrong : wrong_ones) {
    all.push_back(
        {wrong.name, [=] { return judge(wrong.solution); }, wrong.sentence, wrong.mistake});
  }
  return run_lab(argc, argv, folder, all);
}

}  // namespace weft::learn
