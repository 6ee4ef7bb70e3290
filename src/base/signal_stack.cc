#include "base/signal_stack.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>

namespace tally::base {
namespace {

class SignalStack {
 public:
  SignalStack() {
    // What the kernel saves there depends on the registers that the machine has.
    constexpr long kBytes = 32 << 10;
    bytes_ = static_cast<size_t>(std::max(::sysconf(_SC_SIGSTKSZ), kBytes));
    memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) return;
    const stack_t stack{.ss_sp = memory_, .ss_flags = 0, .ss_size = bytes_};
    ::sigaltstack(&stack, nullptr);
  }
  ~SignalStack() {
    if (memory_ == MAP_FAILED) return;
    const stack_t none{.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
    ::sigaltstack(&none, nullptr);
    ::munmap(memory_, bytes_);
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  size_t bytes_ = 0;
  void* memory_ = MAP_FAILED;
};

}  // namespace

void take_signal_stack() {
#if !defined(TALLY_INSTRUMENTED)  // sanitizers give each thread one of their own
  static thread_local const SignalStack stack;
#endif
}

}  // namespace tally::base
