// tally inspect: what is in the file, what it becomes, and which kernels this machine would use.
#include "cli.h"
#include "engine/memory.h"
#include "gguf/gguf.h"
#include "inspect.h"
#include "kernels/kernels.h"
#include "loading.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace tally::apps {

// A file that cannot be served is shown as far as it can be read; what is wrong is told last.
int run_inspect(const Invocation& call) {
  const auto model = model_argument(call.arguments, 1);
  if (!model) return fail(model.error());
  const std::string& wanted = call.settings.text("isa");
  const auto isa = wanted == "best" ? kernels::best_isa() : *kernels::find_isa(wanted);
  if (!kernels::host_has(isa)) {
    return fail(
        {base::ErrorCode::kConfig, fmt::format("--isa {}: this CPU has {}", wanted, kernels::host_isas())});
  }
  const auto file = gguf::File::open(*model);
  if (!file) return fail(file.error());
  Inspection found = inspect_file(*file, kernels::kernel_table(isa));
  const uint32_t threads = usable_threads(static_cast<uint32_t>(call.settings.number("threads")));
  found.tuning = engine::kept_tuning(tuning_file(call.settings, threads), found.isa, threads);
  std::erase_if(found.tuning, [&](const engine::Tuning& t) {
    return std::none_of(found.types.begin(), found.types.end(),
                        [&](const auto& use) { return use.first == t.type; });
  });
  if (call.settings.on("json")) {
    print_inspection_json(*file, found);
  } else {
    print_inspection(*file, found, {.tensors = call.settings.on("tensors")});
  }
  std::fflush(stdout);
  return found.refused ? fail(*found.refused) : 0;
}

}  // namespace tally::apps
