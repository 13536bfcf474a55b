#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <variant>
#include <vector>

#include "kernels/cpu/ops.h"
#include "runtime/aligned.h"
#include "runtime/batch.h"
#include "runtime/moe_workspace.h"
#include "runtime/schedule.h"
#include "runtime/thread_pool.h"

namespace slipstream {

// A model's forward as a list of fused ops over bound weights, one KV cache and workspaces of its own. Weights, vectors and
// the cache belong to the caller and must outlive the program.
//
// A step is a list of phases. A phase is cut into pieces, divided among the threads; a thread claims its own pieces one by
// one, then those that others have not come to. So a thread that loses its processor delays the step only by the piece it
// holds. Claims carry the number of their step: a thread that comes back late finds its step over and touches nothing.
class Program {
  public:
    static constexpr int kMaxPieces = 16;  // of one thread's share

    Program(const KernelTable& kernels, std::shared_ptr<ThreadPool> pool);
    ~Program();
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    // What is added is checked against what was added before: std::invalid_argument, with the reason, and nothing is added.
    int add_rows(Domain domain, int columns);          // a float32 buffer
    int add_output(int columns);                       // the buffer that `run` is given, rows by wanted logits
    int add_input(int columns);                        // a float32 buffer that `run` fills, rows by tokens
    int add_tiles(Domain domain, int columns);         // quantised activations
    void add(const EmbedOp& op);
    void add(const TokenOp& op);
    void add(const HeadNormOp& op);
    void add(const RopeOp& op);
    void add(LinearOp op, std::vector<Segment> segments);
    void add(const GateOp& op);
    void add(const SoftCapOp& op);
    void add(AttentionOp op, int num_blocks);
    void add(const RouteOp& op);
    void add(MoeOp op, const std::vector<Matrix>& gates, const std::vector<Matrix>& ups, const std::vector<Matrix>& downs);

    int num_ops() const { return static_cast<int>(ops_.size()); }

    // One step. `output` [num_logits, columns of the output], `input` [num_tokens, columns of the input] if there is one. Throws
    // std::invalid_argument when an index is out of range.
    void run(const BatchArrays& batch, float* output, const float* input = nullptr);

    // The rows of a buffer as the last run left them, [rows][columns]. Throws std::invalid_argument when there are fewer.
    void copy_rows(int buffer, int rows, int columns, float* out);

    // Seconds per op since profiling was turned on, from the end of one to the end of the next.
    void set_profiling(bool on);
    const std::vector<double>& profile() const { return seconds_; }
    const char* op_name(int op) const;

  private:
    using Op = std::variant<EmbedOp, TokenOp, HeadNormOp, RopeOp, LinearOp, GateOp, SoftCapOp, AttentionOp, RouteOp, MoeOp>;
    struct RowsBuffer {
        Domain domain;
        int columns;
        bool output;
        Aligned<float> data;
        int capacity = 0;
    };
    struct TilesBuffer {
        Domain domain;
        int groups;
        bool by_token = false, shared = false;  // made by token ops before their products; by something else
        Aligned<std::int32_t> data;
        std::size_t capacity = 0;
    };
    struct TilingBuffer {
        std::vector<int> start, tile;
    };

    enum class Part : char { Main, Write, Merge, Group, Gather, Down };
    struct Phase {
        int op;
        Part part;
        int prologue;           // a token op that every thread computes by itself before its first piece, or -1
        std::int64_t unit_bytes;  // of weights
    };
    // What a phase does in this step: units, where each thread's begin (nullptr: equal shares), whether the prologue is due.
    struct Share {
        int units = 0;
        const int* bounds = nullptr;
        bool prologue = false;
    };

    // program_build.cpp
    void check_rows(const char* what, Ref ref, Domain domain, std::int64_t columns) const;
    void check_product(const Segment& segment, Domain domain) const;
    void check_tiles(int tiles, Domain domain, std::int64_t columns) const;
    void check_gated(const LinearOp& op, const std::vector<Segment>& segments) const;
    int prologue_of(const LinearOp& op, const std::vector<Segment>& segments);
    void append(Op op, int prologue = -1, std::int64_t unit_bytes = 0);
    // program.cpp
    void prepare(const BatchArrays& batch, float* output, const float* input);
    void prepare_tiling(Domain domain, int rows);
    void prepare_phases();
    Share share_of(const Phase& phase) const;
    int moe_units(const MoeOp& op, Part part) const;
    int share_begin(const Share& share, int thread) const;
    int num_pieces(const Phase& phase, const Share& share, int thread) const;
    std::atomic<std::uint64_t>& claims(std::size_t phase, int thread) { return claims_[static_cast<std::size_t>(thread) * claims_stride_ + phase]; }
    int claim(std::size_t phase, int thread, std::uint32_t step);
    void execute(int thread);
    void execute_piece(const Phase& phase, const Share& share, int thread, int owner, int piece, bool& prepared);
    void closing(std::size_t phase);
    void execute_alone();
    void execute_units(const Phase& phase, int thread, int first, int last);
    void execute_experts(const MoeOp& op, Part part, int thread, int first, int last);
    void need_scratch(int floats) { scratch_floats_ = floats > scratch_floats_ ? floats : scratch_floats_; }

    const KernelTable& kernels_;
    std::shared_ptr<ThreadPool> pool_;
    std::vector<Op> ops_;
    std::vector<Phase> phases_;
    std::vector<std::unique_ptr<std::vector<Segment>>> segments_;
    std::vector<std::unique_ptr<std::vector<int>>> bounds_;
    std::vector<std::unique_ptr<std::vector<Matrix>>> experts_;
    std::vector<std::unique_ptr<MoeWorkspace>> workspaces_;
    std::vector<RowsBuffer> rows_;
    std::vector<TilesBuffer> tiles_;
    std::vector<std::unique_ptr<ScheduleBuilder>> builders_;
    BatchLimits limits_;
    bool has_output_ = false;
    int input_ = -1;
    int scratch_floats_ = 64 * 64 + 64;

    std::mutex running_;
    Step step_;
    std::vector<Share> shares_;                             // by phase
    std::unique_ptr<std::atomic<std::uint64_t>[]> claims_;  // [thread][phase]: step, next piece, number of pieces
    std::unique_ptr<std::atomic<std::uint64_t>[]> open_;    // [phase]: step, pieces that are not done
    std::unique_ptr<std::atomic<std::int64_t>[]> closed_at_;  // [phase]: nanoseconds, when profiling
    std::size_t claims_stride_ = 0;
    std::atomic<std::uint32_t> step_number_{0};
    std::vector<Rows> row_views_;
    std::vector<Tiles> tile_views_;
    std::vector<AttentionSchedule> schedules_;
    std::vector<MoeWork> moe_views_;
    TilingBuffer tilings_[2];
    std::vector<Aligned<float>> scratch_;
    std::vector<float*> scratch_views_;
    int scratch_capacity_ = 0;
    bool profiling_ = false;
    std::vector<double> seconds_;
};

}  // namespace slipstream
