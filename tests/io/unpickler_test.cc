// Pickles that no file of torch.save has.
#include <string>
#include <vector>

#include "weft/tests/io/files.h"
#include "weft/tests/io/pickles.h"

namespace weft::io {
namespace {

using testing::BadFile;
using testing::expect_refused;
using testing::kTwoFloats;
using testing::little;
using testing::pickled;
using testing::pickled_global;
using testing::pickled_int;
using testing::pickled_storage;
using testing::pickled_tensor;
using testing::pickled_text;
using testing::repeated;
using testing::torch_file;
using testing::values;

// Each list is used twice, the first time at a small depth.
std::string deep_by_sharing() {
  std::string text = "(N";
  for (int i = 0; i < 50; ++i) text += repeated("\x85", 60) + "q\x01h\x01";
  return text + "t";
}

/// A tensor with this as _rebuild_tensor_v2's argument `metadata`.
std::string marked_tensor(const std::string& metadata) {
  std::string text = pickled_tensor(kTwoFloats, {2}, {1});
  return text.insert(text.size() - 2, metadata);  // before the end of the arguments
}

std::vector<BadFile> bad_pickles() {
  const std::string os = pickled_global("os", "system") + pickled_text("true") + "\x85R";
  const std::string huge = pickled_int(std::int64_t{1} << 62);
  return {
      {"Nothing", "", "Io", "the pickle ends inside an instruction"},
      {"NoStop", "\x80\x02N", "Io", "the pickle ends inside an instruction"},
      {"EmptyStack", "\x80\x02.", "Io", "finds no value on the stack"},
      {"LeftOver", pickled("NN"), "Io", "values are left over"},
      {"OpenMark", pickled("(N"), "Io", "values are left over"},
      {"NoMark", pickled("Nt"), "Io", "no mark on the stack"},
      {"TupleOfNothing", pickled("\x85"), "Io", "a tuple of 1 finds fewer values"},
      {"TupleAcrossMark", pickled("N(\x85"), "Io", "a tuple of 1 finds fewer values"},
      {"PopAcrossMark", pickled("]N(a"), "Io", "finds fewer values"},
      {"ShortNumber", "\x80\x02J\x01", "Io", "inside an instruction of 4 bytes"},
      {"LongText", pickled("X\xff\xff\xff\xff"), "Io", "inside an instruction of 4294967295 bytes"},
      {"LongInteger", pickled("\x8a\x09" + std::string(8, '\0') + "\x01"), "Unsupported",
       "an integer of more than 64 bits"},
      {"UnsignedInteger", pickled("\x8a\x09" + std::string(8, '\xff') + std::string(1, '\0')),
       "Unsupported", "an integer of more than 64 bits"},
      {"NoMemo", pickled("h\x07"), "Io", "value 7 is used before it is remembered"},
      {"AppendToDict", pickled("}Na"), "Io", "items are added to a dict, not a list"},
      {"SetItemOfList", pickled("]NNs"), "Io", "items are added to a list, not a dict"},
      {"KeyWithoutValue", pickled("}(Nu"), "Io", "a key without a value"},
      {"KeyTwice", pickled("}(K\x01NK\x01Nu"), "Io",
       "PyTorch data: a dict: [PickleValue] the key 1 is given twice"},
      {"ListAsKey", pickled("}]Ns"), "Unsupported", "PyTorch data: a dict with a key of type list"},
      {"LongKey", pickled("}" + pickled_text(std::string(5000, 'k')) + "Ns"), "Unsupported",
       "a key of more than 4096 bytes"},
      {"OsSystem", pickled(os), "Unsupported", "the global \"os.system\" is none that a file of"},
      {"Eval", pickled(pickled_global("__builtin__", "eval") + ")R"), "Unsupported",
       "the global \"builtins.eval\" is none"},
      {"OwnClass", pickled(pickled_global("__main__", "Net") + ")\x81"), "Unsupported",
       "the global \"__main__.Net\" is none that a file of weights needs"},
      {"DotsInName", pickled(pickled_global("torch", "nn.Linear") + ")R"), "Unsupported",
       "the global \"torch.nn.Linear\" is none"},
      {"GlobalWithoutEnd", pickled("ctorch\nSize"), "Io", "a global's name does not end"},
      {"ControlCharacters", pickled(pickled_global("a\x1b[2J", "b")), "Unsupported",
       "the global \"a?[2J.b\" is none"},
      {"StackGlobal", pickled(pickled_text("os") + pickled_text("system") + "\x93"), "Unsupported",
       "instruction 147 of the pickle, at byte 20, is not one that torch.load(weights_only=True)"},
      {"Instance", pickled("(ios\nsystem\n"), "Unsupported", "instruction 105"},
      {"Extension", pickled("\x82\x01"), "Unsupported", "instruction 130"},
      {"PersistentText", pickled("Pstorage\n"), "Unsupported", "instruction 80"},
      {"Protocol4", std::string("\x80\x04\x95") + little(2, 8) + "N.", "Unsupported",
       "pickle protocol 4; save with 2, torch.save's default"},
      {"OtherDtype", pickled(pickled_global("torch._utils", "_rebuild_tensor_v3") + ")R"),
       "Unsupported", "a dtype that weft lacks (uint16, uint32, uint64, float8 ...)"},
      {"Scheme", pickled(pickled_global("torch.cuda.sparse", "FloatTensor") + ")R"), "Unsupported",
       "weft has nothing for torch.cuda.sparse.FloatTensor"},
      {"Negated", pickled(marked_tensor("}" + pickled_text("neg") + "\x88s")), "Unsupported",
       "a tensor that is marked as \"neg\""},
      {"OddMark", pickled(marked_tensor("K\x01")), "Unsupported", "a tensor that is marked"},
      {"Complex", pickled(pickled_global("__builtin__", "complex")), "Unsupported",
       "weft has nothing for builtins.complex"},
      {"Sparse", pickled(pickled_global("torch._utils", "_rebuild_sparse_tensor")), "Unsupported",
       "weft has nothing for torch._utils._rebuild_sparse_tensor"},
      {"CallOfText", pickled(pickled_text("f") + ")R"), "Io", "what is called has type str"},
      {"CallOfDtype", pickled(pickled_global("torch", "float32") + ")R"), "Io",
       "torch.float32 is called, but is no function"},
      {"ArgumentsNoTuple", pickled(pickled_global("torch", "Size") + "NR"), "Io",
       "an argument list has type None, not tuple"},
      {"ManyArguments", pickled(pickled_global("torch", "Size") + "(" + repeated("N", 17) + "tR"),
       "Io", "too many arguments"},
      {"RebuildOfItself",
       pickled(pickled_global("torch._tensor", "_rebuild_from_type_v2") + "q\x01(h\x01" +
               pickled_global("torch", "Tensor") + ")NtR"),
       "Io", "_rebuild_from_type_v2 of itself"},
      {"Subclass",
       pickled(pickled_global("torch._tensor", "_rebuild_from_type_v2") + "(" +
               pickled_global("torch._utils", "_rebuild_tensor_v2") +
               pickled_global("torch", "Size") + ")NtR"),
       "Unsupported", "weft has no tensors of type torch.Size"},
      {"BuildOfList", pickled("]}b"), "Unsupported", "attributes of a list"},
      {"PairsOfThree",
       pickled(pickled_global("collections", "OrderedDict") + "]NNN\x87"
                                                              "a\x85R"),
       "Io", "something else than pairs"},
      {"NoPair", pickled(pickled_global("collections", "OrderedDict") + "]Na\x85R"), "Io",
       "something else than pairs"},
      {"HighCharacter",
       pickled(pickled_global("_codecs", "encode") + pickled_text("\xe2\x82\xac") + "\x85R"), "Io",
       "bytes with a character above 255"},
      {"PersistentList", pickled("]Q"), "Io", "the name of a storage has type list, not tuple"},
      {"PersistentShort", pickled(")Q"), "Io", "a reference to something else than a storage"},
      {"StorageAlone", pickled(kTwoFloats), "Unsupported", "a storage without a tensor"},
      {"StorageMissing", pickled(pickled_tensor(pickled_storage("9", 2), {2}, {1})), "Io",
       "storage \"9\" is missing"},
      {"StorageElsewhere", pickled(pickled_tensor(pickled_storage("../version", 2), {2}, {1})),
       "Io", "storage \"../version\" is missing"},
      {"StorageTooLarge", pickled(pickled_tensor(pickled_storage("0", 3), {2}, {1})), "Io",
       "claims 3 elements of 4 bytes, its record has 8 bytes"},
      {"StorageHuge",
       pickled(pickled_tensor(pickled_storage("0", std::int64_t{1} << 62), {2}, {1})), "Io",
       "claims 4611686018427387904 elements of 4 bytes"},
      {"StorageNegative", pickled(pickled_tensor(pickled_storage("0", -2), {2}, {1})), "Io",
       "claims -2 elements"},
      {"StorageShort", pickled(pickled_tensor(pickled_storage("0", 4, "ShortStorage"), {2}, {1})),
       "Unsupported", "weft has no dtype for torch.ShortStorage"},
      {"StorageTwoTypes",
       pickled(pickled_tensor(kTwoFloats, {2}, {1}) +
               pickled_tensor(pickled_storage("0", 2, "IntStorage"), {2}, {1}) + "\x86"),
       "Io", "storage \"0\" has two types or sizes"},
      {"BadBool", pickled(pickled_tensor(pickled_storage("0", 8, "BoolStorage"), {8}, {1})), "Io",
       "value 128 in the bools of record \"a/data/0\""},
      {"ShapeHuge", pickled(pickled_tensor(kTwoFloats, {std::int64_t{1} << 62}, {1})), "Io",
       "reaches outside a storage of 2 elements"},
      {"ShapeOverflow",
       pickled(pickled_tensor(kTwoFloats, {std::int64_t{1} << 32, std::int64_t{1} << 32}, {0, 0})),
       "Io", "a tensor of shape"},
      {"ShapeNegative", pickled(pickled_tensor(kTwoFloats, {-1}, {1})), "Io", "a tensor of shape"},
      {"StrideNegative", pickled(pickled_tensor(kTwoFloats, {2}, {-1}, 1)), "Io",
       "negative stride"},
      {"StrideHuge", pickled(pickled_tensor(kTwoFloats, {3}, {std::int64_t{1} << 62})), "Io",
       "reaches outside a storage of 2 elements"},
      {"OffsetPastTheEnd", pickled(pickled_tensor(kTwoFloats, {2}, {1}, 1)), "Io",
       "reaches outside a storage of 2 elements"},
      {"OffsetNegative", pickled(pickled_tensor(kTwoFloats, {1}, {1}, -1)), "Io",
       "reaches outside a storage of 2 elements"},
      {"NineDimensions",
       pickled(pickled_tensor(kTwoFloats, std::vector<std::int64_t>(9, 1),
                              std::vector<std::int64_t>(9, 1))),
       "Unsupported", "a tensor with 9 dimensions"},
      {"ShapeOfTexts",
       pickled(pickled_global("torch._utils", "_rebuild_tensor") + "(" + kTwoFloats +
               "K\x01N\x85N\x85tR"),
       "Io", "shape or strides are no integers"},
      {"Recursive",
       pickled("]q\x01h\x01"
               "a"),
       "Unsupported", "nested in themselves"},
      {"RecursiveDict", pickled("}q\x01Nh\x01s"), "Unsupported", "nested in themselves"},
      {"RecursiveAttributes",
       pickled("}q\x01h\x01"
               "b"),
       "Unsupported", "nested in themselves"},
      {"Deep", pickled("N" + repeated("\x85", 1'000'000)), "Unsupported", "deeper than 100"},
      {"DeepBySharing", pickled(deep_by_sharing()), "Unsupported", "deeper than 100"},
      {"MillionMarks", pickled(repeated("(", 2'000'000)), "Unsupported", "too many marks"},
      {"MillionsOfValues", pickled(repeated("N", 2'000'000)), "Unsupported", "more than 1048576"},
      {"MillionsOfLists", pickled("]" + repeated("]a", 3'000'000)), "Unsupported",
       "more than 2097152 values"},
      {"MillionsRemembered",
       [] {
         std::string text = "N";
         for (std::uint64_t i = 0; i < 5'000'000; ++i) text += "r" + little(i, 4);
         return pickled(text);
       }(),
       "Unsupported", "more than 4194304 remembered values"},
      {"CopiesOfASet",
       pickled("]q\x01(" + repeated("K\x01", 1'000'000) + "e(" +
               repeated(pickled_global("__builtin__", "set") + "h\x01\x85R", 1000) + "t"),
       "Unsupported", "more than 4194304 values in lists"},
      {"AppendedItems",
       pickled("]q\x01(" + repeated("h\x01", 1000) + "e" +
               repeated("h\x01"
                        "a",
                        5'000'000)),
       "Unsupported", "more than 4194304 values in lists"},
      {"CopiesOfArguments",
       pickled(pickled_global("torch._tensor", "_rebuild_from_type_v2") + "q\x01(" +
               pickled_global("torch._utils", "_rebuild_tensor_v2") +
               pickled_global("torch", "Tensor") + "(" + pickled_storage("0", 2) + pickled_int(0) +
               "))" + repeated("N", 1'000'000) + "t}tq\x02" + repeated("h\x01h\x02R", 1000)),
       "Io", "too many arguments"},
      {"CopiesOfBytes",
       pickled(pickled_text(std::string(10'000'000, 'a')) + "q\x01(" +
               repeated(pickled_global("_codecs", "encode") + "h\x01\x85R", 1000) + "t"),
       "Unsupported", "texts of more than"},
  };
}

class BadPickleTest : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadPickleTest, IsRefused) {
  expect_refused(torch_file(GetParam().text, {little(0x3f800000, 4) + little(0x40000000, 4)}),
                 GetParam());
}

INSTANTIATE_TEST_SUITE_P(Each, BadPickleTest, ::testing::ValuesIn(bad_pickles()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace weft::io
