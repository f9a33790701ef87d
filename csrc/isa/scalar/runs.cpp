// Every processor runs the scalar tier.
namespace octavo {

bool scalar_runs();

bool scalar_runs() { return true; }

}  // namespace octavo
