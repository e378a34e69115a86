#include "weft/c_api/named_models.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "weft/c_api/model.h"
#include "weft/core/base/error.h"
#include "weft/core/base/version.h"

namespace weft::c_api {
namespace {

constexpr const char* kOp = "weft_model_open";

struct Models {
  std::mutex mutex;
  std::vector<const NamedModel*> list;
};

// Never destroyed: a library that is unloaded at the program's end still removes its models from
// it.
Models& models() {
  static Models* const all = new Models;
  return *all;
}

// The loaded file that contains an object; null if none does.
const link_map* file_of(const void* object) {
  Dl_info unused;
  void* file = nullptr;
  return dladdr1(object, &unused, &file, RTLD_DL_LINKMAP) ? static_cast<link_map*>(file) : nullptr;
}

const link_map* load(const char* library) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* const reason = dlerror();
    WEFT_THROW(Io, kOp, reason ? reason : library);
  }
  link_map* file = nullptr;
  WEFT_CHECK(dlinfo(handle, RTLD_DI_LINKMAP, &file) == 0, Io, kOp, dlerror());
  return file;
}

std::string names(const std::vector<const NamedModel*>& list) {
  std::string text;
  for (const NamedModel* model : list) text += (text.empty() ? "" : ", ") + model->name();
  return text;
}

}  // namespace

NamedModel::NamedModel(std::string name, std::function<nn::AnyModule()> make)
    : name_(std::move(name)), make_(std::move(make)) {
  const std::lock_guard lock(models().mutex);
  models().list.push_back(this);
}

NamedModel::~NamedModel() {
  const std::lock_guard lock(models().mutex);
  std::erase(models().list, this);
}

nn::AnyModule make_model(const char* library, const std::string& name) {
  const link_map* const file = load(library);
  const std::string shown = library ? library : "the program";
  // A copy: dladdr1() waits for a thread that opens another library, and that thread waits for the
  // mutex when it comes to that library's models.
  std::vector<const NamedModel*> found;
  {
    const std::lock_guard lock(models().mutex);
    found = models().list;
  }
  std::erase_if(found, [&](const NamedModel* model) { return file_of(model) != file; });
  WEFT_CHECK(!found.empty(), InvalidArgument, kOp, shown,
             ": no WEFT_C_MODEL in it for this libweft, ", kVersion);
  const auto has_name = [&](const NamedModel* model) { return model->name() == name; };
  const auto count = std::ranges::count_if(found, has_name);
  WEFT_CHECK(count > 0, InvalidArgument, kOp, shown, ": no model ", name, "; it has ",
             names(found));
  WEFT_CHECK(count == 1, InvalidArgument, kOp, shown, ": ", count, " models are named ", name);
  return (*std::ranges::find_if(found, has_name))->make();
}

}  // namespace weft::c_api
